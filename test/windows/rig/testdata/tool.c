#include <stdio.h>

int main(void) { puts("the rig's netsh"); return 0; }
