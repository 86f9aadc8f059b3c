/* A DLL that stands in for Wine's own. */
#include <windows.h>

__declspec(dllexport) int WINAPI rig_answer(void) { return 42; }
