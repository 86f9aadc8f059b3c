/* Windows' pdh.dll: performance counters with the simulator's values. It has only the functions that Go programs use (upstream's winstats,
 * gopsutil). */
#include "wire.h"

#define API __declspec(dllexport) DWORD WINAPI
#define PDH_INVALID_ARGUMENT 0xC0000BBDu
#define PDH_MORE_DATA 0x800007D2u
#define PDH_FMT_LONG 0x100u
#define PDH_FMT_DOUBLE 0x200u
#define PDH_FMT_LARGE 0x400u

struct value { DWORD status, unused; union { LONG l; double d; LONGLONG ll; } v; };
struct item { WCHAR *name; struct value value; };

/* ask sends handle and text. Unless out is NULL, *out receives the number at the start of the answer. */
static DWORD ask(const char *function, HANDLE handle, const WCHAR *text, HANDLE *out, struct answer *whole)
{
	ULONG64 number = (ULONG64)(ULONG_PTR)handle;
	struct field f[] = {{&number, sizeof number}, wire_text(text)};
	struct answer a = wire_call(function, f, 2);
	DWORD result = a.result;
	free((void *)f[1].data);
	if (out && result == 0 && a.count > 0 && a.size[0] == 8)
		*out = (HANDLE)(ULONG_PTR)*(ULONG64 *)a.data[0];
	if (whole)
		*whole = a;
	else
		wire_free(&a);
	return result;
}

API PdhOpenQueryW(PCWSTR source, DWORD_PTR user, HANDLE *query)
{
	(void)user;
	return query ? ask("pdh PdhOpenQuery", NULL, source, query, NULL) : PDH_INVALID_ARGUMENT;
}

API PdhOpenQueryA(PCSTR source, DWORD_PTR user, HANDLE *query) { return source ? PDH_INVALID_ARGUMENT : PdhOpenQueryW(NULL, user, query); }
API PdhOpenQuery(PCWSTR source, DWORD_PTR user, HANDLE *query) { return PdhOpenQueryW(source, user, query); }

API PdhAddCounterW(HANDLE query, PCWSTR path, DWORD_PTR user, HANDLE *counter)
{
	(void)user;
	return counter ? ask("pdh PdhAddCounter", query, path, counter, NULL) : PDH_INVALID_ARGUMENT;
}

API PdhAddEnglishCounterW(HANDLE query, PCWSTR path, DWORD_PTR user, HANDLE *counter)
{
	(void)user;
	return counter ? ask("pdh PdhAddEnglishCounter", query, path, counter, NULL) : PDH_INVALID_ARGUMENT;
}

API PdhRemoveCounter(HANDLE counter) { return ask("pdh PdhRemoveCounter", counter, NULL, NULL, NULL); }
API PdhValidatePathW(PCWSTR path) { return ask("pdh PdhValidatePath", NULL, path, NULL, NULL); }
API PdhCollectQueryData(HANDLE query) { return ask("pdh PdhCollectQueryData", query, NULL, NULL, NULL); }
API PdhCloseQuery(HANDLE query) { return ask("pdh PdhCloseQuery", query, NULL, NULL, NULL); }

static struct value formatted(DWORD format, double number)
{
	struct value v = {0};
	if (format & PDH_FMT_LONG)
		v.v.l = (LONG)number;
	else if (format & PDH_FMT_LARGE)
		v.v.ll = (LONGLONG)number;
	else
		v.v.d = number;
	return v;
}

API PdhGetFormattedCounterValue(HANDLE counter, DWORD format, DWORD *type, struct value *value)
{
	struct answer a;
	DWORD result = ask("pdh PdhGetFormattedCounterValue", counter, NULL, NULL, &a);
	if (!value)
		result = PDH_INVALID_ARGUMENT;
	else if (result == 0 && a.count > 0)
		*value = formatted(format, strtod(a.data[0], NULL));
	if (type)
		*type = 0;
	wire_free(&a);
	return result;
}

/* The answer has lines "instance<TAB>number"; the names follow the items in the caller's buffer. */
API PdhGetFormattedCounterArrayW(HANDLE counter, DWORD format, DWORD *size, DWORD *count, struct item *items)
{
	struct answer a;
	DWORD result = ask("pdh PdhGetFormattedCounterArray", counter, NULL, NULL, &a), lines = 0, need = 0;
	if (result != 0 || !size || !count || a.count == 0) {
		wire_free(&a);
		return result ? result : PDH_INVALID_ARGUMENT;
	}
	for (char *p = a.data[0]; *p; p++)
		lines += *p == '\n';
	need = lines * sizeof(struct item) + a.size[0] * sizeof(WCHAR) + sizeof(WCHAR);
	if (!items || *size < need) {
		*size = need, *count = lines;
		wire_free(&a);
		return PDH_MORE_DATA;
	}
	WCHAR *name = (WCHAR *)(items + lines);
	char *line = a.data[0];
	for (DWORD i = 0; i < lines; i++) {
		char *end = strchr(line, '\n'), *tab = strchr(line, '\t');
		int length = MultiByteToWideChar(CP_UTF8, 0, line, (int)(tab - line), name, (int)(tab - line));
		items[i].name = name;
		items[i].value = formatted(format, strtod(tab + 1, NULL));
		name[length] = 0;
		name += length + 1;
		line = end + 1;
	}
	*size = need, *count = lines;
	wire_free(&a);
	return 0;
}
