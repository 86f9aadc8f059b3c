/* Windows' netsh.exe and, with -DPOWERSHELL, powershell.exe: sends its arguments and, with -f, the script to the simulator, and prints the
 * answer. */
#include "wire.h"

/* script reads the file of -f. netsh accepts the OEM code page, or UTF-16 with a byte order mark; ours are ASCII. */
static struct field script(const WCHAR *path)
{
	struct field f = {NULL, 0};
	FILE *file = path ? _wfopen(path, L"rb") : NULL;
	char *data = file ? malloc(1 << 24) : NULL;
	if (data) {
		f.size = (DWORD)fread(data, 1, 1 << 24, file);
		f.data = data;
	}
	if (file)
		fclose(file);
	return f;
}

int wmain(int argc, WCHAR **argv)
{
	/* The arguments are one field of zero-terminated strings, because a command line may have many. */
	struct field fields[3] = {{"", 0}, {"", 0}, {"absent", 6}};
	char *args = calloc(1, 1 << 16);
	DWORD size = 0;
	for (int i = 1; args && i < argc; i++) {
		struct field one = wire_text(argv[i]);
		if (size + one.size + 1 < 1 << 16) {
			memcpy(args + size, one.data, one.size);
			size += one.size + 1;
		}
		if (i == 1 && wcscmp(argv[i], L"-f") == 0 && argc > 2) {
			struct field text = script(argv[2]);
			if (text.data)
				fields[1] = text, fields[2] = (struct field){"present", 7};
		}
	}
	fields[0].data = args, fields[0].size = size;
#ifdef POWERSHELL
	struct answer a = wire_call("powershell run", fields, 3);
#else
	struct answer a = wire_call("netsh run", fields, 3);
#endif
	if (a.count > 0)
		fwrite(a.data[0], 1, a.size[0], stdout);
	return (int)a.result;
}
