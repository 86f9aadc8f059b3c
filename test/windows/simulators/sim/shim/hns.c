/* vmcompute.dll (with -DVMCOMPUTE: HNSCall, compute systems) and computenetwork.dll (Hcn*) of Windows. Signatures: hcsshim's //sys lines and Microsoft's
 * "RPC context handles for HCN". Returned strings are CoTaskMemAlloc'ed, error records only come with errors. */
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

/* call asks the simulator and frees the fields. */
static struct answer call(const char *function, struct field *fields, DWORD count)
{
	struct answer a = wire_call(function, fields, count);
	for (DWORD i = 0; i < count; i++)
		free((void *)fields[i].data);
	return a;
}

#define API __declspec(dllexport) HRESULT WINAPI

#ifdef VMCOMPUTE
/* Compute systems (hcsshim internal/vmcompute): a handle is the text of the id. Nobody is called back. */
API HcsOpenComputeSystem(PCWSTR id, void **system, PWSTR *result)
{
	struct field fields[] = {wire_text(id)};
	struct answer a = call("hcs HcsOpenComputeSystem", fields, 1);
	HRESULT hr = (HRESULT)a.result;
	*system = hr == 0 ? _wcsdup(id) : NULL;
	give(result, NULL);
	wire_free(&a);
	return hr;
}

API HcsGetComputeSystemProperties(void *system, PCWSTR query, PWSTR *properties, PWSTR *result)
{
	struct field fields[] = {wire_text(system), wire_text(query)};
	struct answer a = call("hcs HcsGetComputeSystemProperties", fields, 2);
	HRESULT hr = (HRESULT)a.result;
	give(properties, hr == 0 && a.count > 0 ? a.data[0] : NULL);
	give(result, NULL);
	wire_free(&a);
	return hr;
}

API HcsModifyComputeSystem(void *system, PCWSTR configuration, PWSTR *result)
{
	struct field fields[] = {wire_text(system), wire_text(configuration)};
	struct answer a = call("hcs HcsModifyComputeSystem", fields, 2);
	HRESULT hr = (HRESULT)a.result;
	give(result, NULL);
	wire_free(&a);
	return hr;
}

API HcsRegisterComputeSystemCallback(void *system, void *callback, void *context, void **handle)
{
	*handle = system;
	return 0;
}

API HcsUnregisterComputeSystemCallback(void *handle) { return 0; }

API HcsCloseComputeSystem(void *system)
{
	free(system);
	return 0;
}

__declspec(dllexport) HRESULT WINAPI HNSCall(PCWSTR method, PCWSTR path, PCWSTR object, PWSTR *response)
{
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
	text[37] = 0; /* without the braces */
	return wire_text(text + 1);
}

static struct field handle_text(void *handle)
{
	WCHAR text[32];
	_snwprintf(text, 32, L"%llu", (unsigned long long)(ULONG_PTR)handle);
	return wire_text(text);
}

/* answered hands over what the simulator said: a value as a string or as a handle, and the error record. */
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

/* Notifications: a connection stays open on which the simulator sends the subscription's result and then one answer per notification. */
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
