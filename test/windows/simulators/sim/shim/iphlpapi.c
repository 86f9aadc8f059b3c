/* Windows' iphlpapi.dll on top of Wine's. The simulator serves what Wine lacks or fakes; tables are Wine's rows (the Linux host's) with the
 * simulator's changes; everything else is forwarded to Wine's own DLL, which the rig has copied to iphlpreal.dll. Functions are named sim_X
 * here; a .def file that the builder writes exports them as X. */
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

/* row_call sends one row to the simulator and copies the returned row back. */
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

/* READS is how often Wine is asked for a table until it succeeds: reading changes nothing, and each failure is reported. */
#define READS 3

/* wine_table gets Wine's own table, and retries if that fails. */
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

/* table_call builds a table from Wine's rows and the simulator's. Rows follow the count, at offset. The table is allocated like Wine's, for
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

/* Initialize*Entry: the values that Microsoft's pages name. Everything else is zero, or -1 for flags that Set leaves unchanged. */
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

/* The simulator converts adapters that only it has; Wine converts the others. */
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

/* Change notifications: on a connection that stays open, the simulator sends the subscription's result, then one answer per change. Its
 * result is the kind, its field the row. */
struct notification {
	const char *function;
	ADDRESS_FAMILY family;
	CRITICAL_SECTION lock; /* guards socket and cancelled */
	SOCKET socket;
	BOOL cancelled;
	HANDLE thread;
	PVOID context;
	void (WINAPI *callback)(PVOID, PVOID, MIB_NOTIFICATION_TYPE);
};

/* stream subscribes and returns the connection. With INVALID_SOCKET, result has the error. */
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

/* again subscribes again. Changes in between are lost, as on Windows for a program that does not listen. */
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

/* deliver calls the callback for each notification. On a busy machine Wine occasionally loses bytes, after which the rest of the connection
 * is unreadable. */
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

/* As on Windows, no callback runs after this returns. */
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
