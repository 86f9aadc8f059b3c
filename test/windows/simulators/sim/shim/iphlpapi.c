/* iphlpapi.dll of Windows over Wine's: what Wine lacks or fakes goes to the simulator; tables are Wine's rows (the Linux host's) with the
 * simulator's changes; all else is forwarded to Wine's own DLL, which the rig has copied to iphlpreal.dll. The functions are named sim_X here
 * and exported as X by a .def file that the builder writes. */
#include "wire.h"
#include <stddef.h>
#include <ifdef.h>
#include <ipifcons.h>
#include <nldef.h>
#include <iprtrmib.h>
#include <netioapi.h>

static FARPROC real(const char *name)
{
	static HMODULE dll;
	if (!dll)
		dll = LoadLibraryA("iphlpreal.dll");
	return dll ? GetProcAddress(dll, name) : NULL;
}

/* refused says whether a test wants a function to fail: WINKUBE_REFUSE in its own environment names it. */
static BOOL refused(const char *function)
{
	char name[64] = "";
	DWORD size = GetEnvironmentVariableA("WINKUBE_REFUSE", name, sizeof name);
	return size > 0 && size < sizeof name && strcmp(strchr(function, ' ') + 1, name) == 0;
}

/* row_call hands one row to the simulator and takes what it makes of it. */
static DWORD row_call(const char *function, void *row, DWORD size)
{
	if (!row)
		return ERROR_INVALID_PARAMETER;
	if (refused(function))
		return ERROR_ACCESS_DENIED;
	struct field f[] = {{row, size}};
	struct answer a = wire_call(function, f, 1);
	if (a.result == 0 && a.count > 0 && a.size[0] == size)
		memcpy(row, a.data[0], size);
	DWORD result = a.result;
	wire_free(&a);
	return result;
}

/* READS is how often Wine is asked for a table until it has one: a look changes nothing, and each one that failed is told. */
#define READS 3

/* wine_table asks Wine for its own table, again where that fails. */
static DWORD wine_table(const char *name, ULONG argument, void *own)
{
	DWORD(WINAPI * wine)(ULONG, void *) = (void *)real(name);
	DWORD result = ERROR_NOT_SUPPORTED;
	for (int i = 0; wine && i < READS; i++) {
		result = wine(argument, own);
		if (result == 0 || result == ERROR_NOT_SUPPORTED)
			break;
		fprintf(stderr, "winkube shim: Wine's %s failed: error %lu\n", name, result);
	}
	return result;
}

/* table_call makes a table of Wine's rows and the simulator's. Rows stand behind a count, at offset. The table is allocated as Wine does, for
 * FreeMibTable. */
static DWORD table_call(const char *function, DWORD family, const void *rows, DWORD count, DWORD row, DWORD offset, void **table)
{
	if (refused(function))
		return ERROR_ACCESS_DENIED;
	struct field f[] = {{&family, sizeof family}, {rows, count * row}};
	struct answer a = wire_call(function, f, 2);
	DWORD result = a.result;
	*table = NULL;
	if (result == 0 && a.count > 0) {
		char *memory = HeapAlloc(GetProcessHeap(), HEAP_ZERO_MEMORY, offset + a.size[0] + row);
		if (memory) {
			*(ULONG *)memory = a.size[0] / row;
			memcpy(memory + offset, a.data[0], a.size[0]);
			*table = memory;
		} else
			result = ERROR_NOT_ENOUGH_MEMORY;
	}
	wire_free(&a);
	return result;
}

#define TABLE(FUNCTION, TYPE)                                                                                       \
	DWORD WINAPI sim_##FUNCTION(ADDRESS_FAMILY family, TYPE **table)                                                  \
	{                                                                                                           \
		TYPE *own = NULL;                                                                                   \
		if (!table)                                                                                         \
			return ERROR_INVALID_PARAMETER;                                                             \
		DWORD failed = wine_table(#FUNCTION, family, &own);                                                 \
		if (failed != 0 && failed != ERROR_NOT_SUPPORTED) /* Wine has no GetIpInterfaceTable */             \
			return failed;                                                                              \
		DWORD result = table_call("iphelper " #FUNCTION, family, own ? own->Table : NULL,                   \
					  own ? own->NumEntries : 0, sizeof own->Table[0], offsetof(TYPE, Table), (void **)table); \
		if (own)                                                                                            \
			HeapFree(GetProcessHeap(), 0, own);                                                         \
		return result;                                                                                      \
	}

#define ROW(FUNCTION, TYPE) \
	DWORD WINAPI sim_##FUNCTION(TYPE *row) { return row_call("iphelper " #FUNCTION, row, sizeof *row); }
#define CONST_ROW(FUNCTION, TYPE)                                       \
	DWORD WINAPI sim_##FUNCTION(const TYPE *row)                          \
	{                                                               \
		TYPE copy;                                              \
		if (!row)                                               \
			return ERROR_INVALID_PARAMETER;                 \
		copy = *row;                                            \
		return row_call("iphelper " #FUNCTION, &copy, sizeof copy); \
	}

TABLE(GetIpForwardTable2, MIB_IPFORWARD_TABLE2)
TABLE(GetUnicastIpAddressTable, MIB_UNICASTIPADDRESS_TABLE)
TABLE(GetIpInterfaceTable, MIB_IPINTERFACE_TABLE)

CONST_ROW(CreateIpForwardEntry2, MIB_IPFORWARD_ROW2)
CONST_ROW(SetIpForwardEntry2, MIB_IPFORWARD_ROW2)
CONST_ROW(DeleteIpForwardEntry2, MIB_IPFORWARD_ROW2)
ROW(GetIpForwardEntry2, MIB_IPFORWARD_ROW2)
CONST_ROW(CreateUnicastIpAddressEntry, MIB_UNICASTIPADDRESS_ROW)
CONST_ROW(SetUnicastIpAddressEntry, MIB_UNICASTIPADDRESS_ROW)
CONST_ROW(DeleteUnicastIpAddressEntry, MIB_UNICASTIPADDRESS_ROW)
ROW(GetUnicastIpAddressEntry, MIB_UNICASTIPADDRESS_ROW)
ROW(GetIpInterfaceEntry, MIB_IPINTERFACE_ROW)
ROW(SetIpInterfaceEntry, MIB_IPINTERFACE_ROW)

DWORD WINAPI sim_GetIfTable2Ex(MIB_IF_TABLE_LEVEL level, MIB_IF_TABLE2 **table)
{
	MIB_IF_TABLE2 *own = NULL;
	if (!table)
		return ERROR_INVALID_PARAMETER;
	DWORD result = wine_table("GetIfTable2Ex", level, &own);
	if (result != 0)
		return result;
	result = table_call("iphelper GetIfTable2Ex", 0, own ? own->Table : NULL, own ? own->NumEntries : 0, sizeof own->Table[0],
				  offsetof(MIB_IF_TABLE2, Table), (void **)table);
	if (own)
		HeapFree(GetProcessHeap(), 0, own);
	return result;
}

DWORD WINAPI sim_GetIfTable2(MIB_IF_TABLE2 **table) { return sim_GetIfTable2Ex(MibIfTableNormal, table); }

/* Initialize*Entry: the values that Microsoft's pages name; all else zero, or -1 for the flags that Set is to leave alone. */
VOID WINAPI sim_InitializeIpForwardEntry(MIB_IPFORWARD_ROW2 *row)
{
	memset(row, 0, sizeof *row);
	row->ValidLifetime = row->PreferredLifetime = 0xffffffff;
	row->Loopback = row->AutoconfigureAddress = row->Publish = row->Immortal = TRUE;
	row->Metric = 0xffffffff;
	row->Protocol = MIB_IPPROTO_NETMGMT;
}

VOID WINAPI sim_InitializeUnicastIpAddressEntry(MIB_UNICASTIPADDRESS_ROW *row)
{
	memset(row, 0, sizeof *row);
	row->PrefixOrigin = IpPrefixOriginUnchanged;
	row->SuffixOrigin = (NL_SUFFIX_ORIGIN)IpSuffixOriginUnchanged;
	row->ValidLifetime = row->PreferredLifetime = 0xffffffff;
	row->OnLinkPrefixLength = 255;
}

VOID WINAPI sim_InitializeIpInterfaceEntry(MIB_IPINTERFACE_ROW *row)
{
	memset(row, 0xff, sizeof *row);
	row->Family = AF_UNSPEC;
	row->InterfaceLuid.Value = 0;
	row->InterfaceIndex = 0;
}

/* Adapters that only the simulator has are converted by it; the others by Wine. */
DWORD WINAPI sim_ConvertInterfaceIndexToLuid(NET_IFINDEX index, NET_LUID *luid)
{
	DWORD(WINAPI * wine)(NET_IFINDEX, NET_LUID *) = (void *)real("ConvertInterfaceIndexToLuid");
	if (wine && wine(index, luid) == 0)
		return 0;
	struct { ULONG64 luid, index; } row = {0, index};
	DWORD result = row_call("iphelper ConvertInterfaceIndexToLuid", &row, sizeof row);
	if (result == 0 && luid)
		luid->Value = row.luid;
	return result;
}

DWORD WINAPI sim_ConvertInterfaceLuidToIndex(const NET_LUID *luid, NET_IFINDEX *index)
{
	DWORD(WINAPI * wine)(const NET_LUID *, NET_IFINDEX *) = (void *)real("ConvertInterfaceLuidToIndex");
	if (wine && wine(luid, index) == 0)
		return 0;
	struct { ULONG64 luid, index; } row = {luid ? luid->Value : 0, 0};
	DWORD result = row_call("iphelper ConvertInterfaceLuidToIndex", &row, sizeof row);
	if (result == 0 && index)
		*index = (NET_IFINDEX)row.index;
	return result;
}

DWORD WINAPI sim_SetCurrentThreadCompartmentId(DWORD id) { return row_call("iphelper SetCurrentThreadCompartmentId", &id, sizeof id); }

/* Change notifications: a connection stays open on which the simulator sends the subscription's result and then one answer per change, its result
 * the kind, its field the row. */
struct notification {
	const char *function;
	ADDRESS_FAMILY family;
	CRITICAL_SECTION lock; /* of socket and cancelled */
	SOCKET socket;
	BOOL cancelled;
	HANDLE thread;
	PVOID context;
	void (WINAPI *callback)(PVOID, PVOID, MIB_NOTIFICATION_TYPE);
};

/* stream subscribes and returns the connection; INVALID_SOCKET: result says why not. */
static SOCKET stream(const struct notification *n, BOOLEAN initial, DWORD *result)
{
	DWORD arguments[2] = {n->family, initial};
	struct field f[] = {{arguments, sizeof arguments}};
	struct answer a = {NO_SIMULATOR};
	SOCKET s = wire_open(n->function, f, 1);
	int answered = s != INVALID_SOCKET && wire_answer(s, &a);
	*result = answered ? a.result : NO_SIMULATOR;
	wire_free(&a);
	if (*result != 0 && s != INVALID_SOCKET)
		closesocket(s), s = INVALID_SOCKET;
	return s;
}

/* again subscribes anew. What happened meanwhile is missed, as on Windows by one that does not listen. */
static BOOL again(struct notification *n)
{
	DWORD result;
	SOCKET s = stream(n, FALSE, &result), old = s;
	if (s == INVALID_SOCKET)
		return FALSE;
	EnterCriticalSection(&n->lock);
	if (!n->cancelled)
		old = n->socket, n->socket = s;
	LeaveCriticalSection(&n->lock);
	closesocket(old);
	return old != s;
}

/* deliver calls back. On a busy machine Wine loses bytes now and then: from then on nothing on the connection can be read. */
static DWORD WINAPI deliver(LPVOID p)
{
	struct notification *n = p;
	struct answer a;
	BOOL whole;
	do {
		while ((whole = wire_answer(n->socket, &a) && a.count == 1 && a.result <= MibInitialNotification &&
			(a.size[0] > 0) == (a.result != MibInitialNotification))) {
			n->callback(n->context, a.size[0] > 0 ? a.data[0] : NULL, (MIB_NOTIFICATION_TYPE)a.result);
			wire_free(&a);
		}
		wire_free(&a);
		if (a.ended)
			return 0;
		fprintf(stderr, "winkube shim: %s: a notification cannot be read, its beginning is lost; subscribed again\n", n->function);
	} while (again(n));
	return 0;
}

static void drop(struct notification *n)
{
	DeleteCriticalSection(&n->lock);
	free(n);
}

static DWORD subscribe(const char *function, ADDRESS_FAMILY family, void *callback, PVOID context, BOOLEAN initial, HANDLE *handle)
{
	DWORD result;
	if (refused(function))
		return ERROR_ACCESS_DENIED;
	struct notification *n = calloc(1, sizeof *n);
	if (!n || !handle || !callback)
		return free(n), ERROR_INVALID_PARAMETER;
	n->function = function, n->family = family, n->callback = callback, n->context = context;
	InitializeCriticalSection(&n->lock);
	n->socket = stream(n, initial, &result);
	if (n->socket == INVALID_SOCKET)
		return drop(n), result;
	if (!(n->thread = CreateThread(NULL, 0, deliver, n, 0, NULL)))
		return closesocket(n->socket), drop(n), NO_SIMULATOR;
	*handle = n;
	return 0;
}

DWORD WINAPI sim_NotifyRouteChange2(ADDRESS_FAMILY family, PIPFORWARD_CHANGE_CALLBACK callback, PVOID context, BOOLEAN initial, HANDLE *handle)
{
	return subscribe("iphelper NotifyRouteChange2", family, callback, context, initial, handle);
}

DWORD WINAPI sim_NotifyUnicastIpAddressChange(ADDRESS_FAMILY family, PUNICAST_IPADDRESS_CHANGE_CALLBACK callback, PVOID context, BOOLEAN initial, HANDLE *handle)
{
	return subscribe("iphelper NotifyUnicastIpAddressChange", family, callback, context, initial, handle);
}

DWORD WINAPI sim_NotifyIpInterfaceChange(ADDRESS_FAMILY family, PIPINTERFACE_CHANGE_CALLBACK callback, PVOID context, BOOLEAN initial, HANDLE *handle)
{
	return subscribe("iphelper NotifyIpInterfaceChange", family, callback, context, initial, handle);
}

/* As on Windows, no callback runs any more when this returns. */
DWORD WINAPI sim_CancelMibChangeNotify2(HANDLE handle)
{
	struct notification *n = handle;
	if (!n)
		return ERROR_INVALID_PARAMETER;
	EnterCriticalSection(&n->lock);
	n->cancelled = TRUE;
	shutdown(n->socket, SD_BOTH);
	LeaveCriticalSection(&n->lock);
	WaitForSingleObject(n->thread, INFINITE);
	CloseHandle(n->thread);
	closesocket(n->socket);
	drop(n);
	return 0;
}
