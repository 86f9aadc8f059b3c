/* Windows' vmcompute.dll (with -DVMCOMPUTE: HNSCall) and computenetwork.dll (Hcn*). Signatures: hcsshim's //sys lines and Microsoft's "RPC
 * context handles for HCN". Returned strings are allocated with CoTaskMemAlloc; only errors have error records. */
#include "wire.h"
#include <objbase.h>

static void give(PWSTR *out, const char *text)
{
	if (!out)
		return;
	*out = NULL;
	int size = text && *text ? MultiByteToWideChar(CP_UTF8, 0, text, -1, NULL, 0) : 0;
	if (size > 0 && (*out = CoTaskMemAlloc((SIZE_T)size * sizeof(WCHAR))))
		MultiByteToWideChar(CP_UTF8, 0, text, -1, *out, size);
}

/* call sends a request to the simulator and frees the fields. */
static struct answer call(const char *function, struct field *fields, DWORD count)
{
	struct answer a = {(DWORD)E_ACCESSDENIED};
	if (!refused(function))
		a = wire_call(function, fields, count);
	for (DWORD i = 0; i < count; i++)
		free((void *)fields[i].data);
	return a;
}

#define API __declspec(dllexport) HRESULT WINAPI

#ifdef VMCOMPUTE
__declspec(dllexport) HRESULT WINAPI HNSCall(PCWSTR method, PCWSTR path, PCWSTR object, PWSTR *response)
{
	char asked[64];
	snprintf(asked, sizeof asked, "hns HNSCall %ls %ls", method, path);
	if (refused(asked))
		return E_ACCESSDENIED;
	struct field fields[] = {wire_text(method), wire_text(path), wire_text(object)};
	struct answer a = call("hns HNSCall", fields, 3);
	give(response, a.result == 0 && a.count > 0 ? a.data[0] : NULL);
	wire_free(&a);
	return (HRESULT)a.result;
}
#else
static struct field guid_text(const GUID *id)
{
	WCHAR text[40] = L"";
	StringFromGUID2(id, text, 40);
	text[37] = 0; /* without the closing brace */
	return wire_text(text + 1);
}

static struct field handle_text(void *handle)
{
	WCHAR text[32];
	_snwprintf(text, 32, L"%llu", (unsigned long long)(ULONG_PTR)handle);
	return wire_text(text);
}

/* answered returns the simulator's answer: a value as a string or as a handle, and the error record. */
static HRESULT answered(struct answer a, PWSTR *value, void **handle, PWSTR *record)
{
	give(value, a.result == 0 && a.count > 0 ? a.data[0] : NULL);
	give(record, a.result != 0 && a.count > 1 ? a.data[1] : NULL);
	if (handle)
		*handle = a.result == 0 && a.count > 0 ? (void *)(ULONG_PTR)strtoull(a.data[0], NULL, 10) : NULL;
	wire_free(&a);
	return (HRESULT)a.result;
}

#define KIND(K)                                                                                                  \
	API HcnEnumerate##K##s(PCWSTR query, PWSTR *ids, PWSTR *record)                                          \
	{                                                                                                        \
		struct field f[] = {wire_text(query)};                                                           \
		return answered(call("hns HcnEnumerate" #K "s", f, 1), ids, NULL, record);                       \
	}                                                                                                        \
	API HcnOpen##K(const GUID *id, void **handle, PWSTR *record)                                             \
	{                                                                                                        \
		struct field f[] = {guid_text(id)};                                                              \
		return answered(call("hns HcnOpen" #K, f, 1), NULL, handle, record);                             \
	}                                                                                                        \
	API HcnModify##K(void *handle, PCWSTR settings, PWSTR *record)                                           \
	{                                                                                                        \
		struct field f[] = {handle_text(handle), wire_text(settings)};                                   \
		return answered(call("hns HcnModify" #K, f, 2), NULL, NULL, record);                             \
	}                                                                                                        \
	API HcnQuery##K##Properties(void *handle, PCWSTR query, PWSTR *properties, PWSTR *record)                \
	{                                                                                                        \
		struct field f[] = {handle_text(handle), wire_text(query)};                                      \
		return answered(call("hns HcnQuery" #K "Properties", f, 2), properties, NULL, record);           \
	}                                                                                                        \
	API HcnDelete##K(const GUID *id, PWSTR *record)                                                          \
	{                                                                                                        \
		struct field f[] = {guid_text(id)};                                                              \
		return answered(call("hns HcnDelete" #K, f, 1), NULL, NULL, record);                             \
	}                                                                                                        \
	API HcnClose##K(void *handle)                                                                            \
	{                                                                                                        \
		struct field f[] = {handle_text(handle)};                                                        \
		return answered(call("hns HcnClose" #K, f, 1), NULL, NULL, NULL);                                \
	}

#define CREATE(K)                                                                                                \
	API HcnCreate##K(const GUID *id, PCWSTR settings, void **handle, PWSTR *record)                          \
	{                                                                                                        \
		struct field f[] = {guid_text(id), wire_text(settings)};                                         \
		return answered(call("hns HcnCreate" #K, f, 2), NULL, handle, record);                           \
	}

KIND(Network) KIND(Endpoint) KIND(Namespace) KIND(LoadBalancer) KIND(SdnRoute)
CREATE(Network) CREATE(Namespace) CREATE(LoadBalancer) CREATE(SdnRoute)

/* Notifications: on a connection that stays open, the simulator sends the subscription's result, then one answer per notification. */
struct notification { SOCKET socket; HANDLE thread; void *context; void (CALLBACK *callback)(DWORD, void *, HRESULT, PCWSTR); };

static DWORD WINAPI deliver(LPVOID p)
{
	struct notification *n = p;
	struct answer a;
	while (wire_answer(n->socket, &a)) {
		n->callback(a.result, n->context, 0, NULL);
		wire_free(&a);
	}
	return 0;
}

API HcnRegisterServiceCallback(void *callback, void *context, void **handle)
{
	struct notification *n = calloc(1, sizeof *n);
	struct answer a = {NO_SIMULATOR};
	n->callback = callback, n->context = context;
	if (refused("hns HcnRegisterServiceCallback")) {
		free(n);
		return E_ACCESSDENIED;
	}
	n->socket = wire_open("hns HcnRegisterServiceCallback", NULL, 0);
	if (n->socket == INVALID_SOCKET || !wire_answer(n->socket, &a) || a.result != 0 ||
	    !(n->thread = CreateThread(NULL, 0, deliver, n, 0, NULL))) {
		if (n->socket != INVALID_SOCKET)
			closesocket(n->socket);
		free(n);
		return (HRESULT)(a.result ? a.result : NO_SIMULATOR);
	}
	wire_free(&a);
	*handle = n;
	return 0;
}

API HcnUnregisterServiceCallback(void *handle)
{
	struct notification *n = handle;
	shutdown(n->socket, SD_BOTH);
	closesocket(n->socket);
	WaitForSingleObject(n->thread, INFINITE);
	CloseHandle(n->thread);
	free(n);
	return 0;
}

API HcnCreateEndpoint(void *network, const GUID *id, PCWSTR settings, void **handle, PWSTR *record)
{
	struct field f[] = {handle_text(network), guid_text(id), wire_text(settings)};
	return answered(call("hns HcnCreateEndpoint", f, 3), NULL, handle, record);
}
#endif
