/* The part of vmcompute.dll for compute systems and their processes. Signatures: hcsshim's //sys lines (internal/vmcompute/vmcompute.go).
 * The simulator has the systems, and says what a process prints when it starts and when it ends. Here a process is its two or three pipes,
 * which stay open until it ends. Notifications go to the handles of this program that registered for them. */
#include "wire.h"
#include <objbase.h>

#define API __declspec(dllexport) HRESULT WINAPI
#define PENDING ((HRESULT)0xC0370103) /* HCS_E_OPERATION_PENDING: a notification follows */
#define SYSTEM_EXITED 0x00000001u     /* hcsshim internal/hcs/callback.go */
#define PROCESS_EXITED 0x00010000u

struct watcher { struct watcher *next; const void *of; void(CALLBACK *call)(DWORD, void *, HRESULT, PCWSTR); void *context; };
/* A process that is shut down ends with CONTROL_C_EXIT (dotnet/announcements#128). The exit code of a terminated process is not known; the
 * shim uses the same. */
struct process { struct process *next; WCHAR *system; DWORD pid, code; BOOL exited, awaited; HANDLE given[3], kept[3]; };
struct system { struct system *next; WCHAR *id; };
struct information { DWORD pid, unused; HANDLE pipe[3]; }; /* HcsProcessInformation */

static CRITICAL_SECTION lock;
static struct watcher *watchers;
static struct process *processes;
static struct system *systems;

BOOL WINAPI DllMain(HINSTANCE dll, DWORD reason, void *unused)
{
	if (reason == DLL_PROCESS_ATTACH)
		InitializeCriticalSection(&lock);
	return TRUE;
}

static void give(PWSTR *out, const char *text)
{
	if (!out)
		return;
	*out = NULL;
	int size = text && *text ? MultiByteToWideChar(CP_UTF8, 0, text, -1, NULL, 0) : 0;
	if (size > 0 && (*out = CoTaskMemAlloc((SIZE_T)size * sizeof(WCHAR))))
		MultiByteToWideChar(CP_UTF8, 0, text, -1, *out, size);
}

/* ask sends a system's ID and, unless it is NULL, another string. */
static HRESULT ask(const char *function, PCWSTR id, PCWSTR more, PWSTR *value, PWSTR *record)
{
	struct field f[] = {wire_text(id), wire_text(more)};
	struct answer a = wire_call(function, f, more ? 2 : 1);
	HRESULT hr = (HRESULT)a.result;
	free((void *)f[0].data);
	free((void *)f[1].data);
	give(value, hr == 0 && a.count > 0 ? a.data[0] : NULL);
	give(record, NULL);
	wire_free(&a);
	return hr;
}

static struct system *handle_of(PCWSTR id)
{
	struct system *s = calloc(1, sizeof *s);
	s->id = _wcsdup(id);
	EnterCriticalSection(&lock);
	s->next = systems, systems = s;
	LeaveCriticalSection(&lock);
	return s;
}

/* tell calls every watcher of that handle. */
static void tell(const void *of, DWORD what)
{
	struct watcher copy[16];
	int count = 0;
	EnterCriticalSection(&lock);
	for (struct watcher *w = watchers; w && count < 16; w = w->next)
		if (w->of == of)
			copy[count++] = *w;
	LeaveCriticalSection(&lock);
	for (int i = 0; i < count; i++)
		copy[i].call(what, copy[i].context, 0, NULL);
}

static void end_process(struct process *p, DWORD code)
{
	EnterCriticalSection(&lock);
	BOOL was = p->exited;
	p->exited = TRUE, p->code = was ? p->code : code;
	LeaveCriticalSection(&lock);
	if (was)
		return;
	for (int i = 0; i < 3; i++)
		if (p->kept[i])
			CloseHandle(p->kept[i]); /* the other side reads end of file */
	tell(p, PROCESS_EXITED);
}

/* ended runs in parallel to the call that ended a system. It notifies the watchers of the system's processes first, then those of the
 * system. */
static DWORD WINAPI ended(LPVOID id)
{
	for (;;) {
		struct process *p;
		EnterCriticalSection(&lock);
		for (p = processes; p && (p->exited || wcscmp(p->system, id)); p = p->next)
			;
		LeaveCriticalSection(&lock);
		if (!p)
			break;
		end_process(p, CONTROL_C_EXIT);
	}
	for (struct system *s = systems; s; s = s->next) /* systems are never freed */
		if (!wcscmp(s->id, id))
			tell(s, SYSTEM_EXITED);
	free(id);
	return 0;
}

static HRESULT end(const char *function, struct system *s, PWSTR *record)
{
	HRESULT hr = ask(function, s->id, NULL, NULL, record);
	if (hr != 0)
		return hr;
	HANDLE thread = CreateThread(NULL, 0, ended, _wcsdup(s->id), 0, NULL);
	if (thread)
		CloseHandle(thread);
	return PENDING;
}

API HcsEnumerateComputeSystems(PCWSTR query, PWSTR *list, PWSTR *record) { return ask("hcs HcsEnumerateComputeSystems", query, NULL, list, record); }

API HcsCreateComputeSystem(PCWSTR id, PCWSTR configuration, HANDLE identity, void **system, PWSTR *record)
{
	HRESULT hr = ask("hcs HcsCreateComputeSystem", id, configuration, NULL, record);
	*system = hr == 0 ? handle_of(id) : NULL;
	return hr;
}

API HcsOpenComputeSystem(PCWSTR id, void **system, PWSTR *record)
{
	HRESULT hr = ask("hcs HcsOpenComputeSystem", id, NULL, NULL, record);
	*system = hr == 0 ? handle_of(id) : NULL;
	return hr;
}

API HcsCloseComputeSystem(void *system) { return 0; }

API HcsStartComputeSystem(struct system *s, PCWSTR options, PWSTR *record) { return ask("hcs HcsStartComputeSystem", s->id, NULL, NULL, record); }
API HcsShutdownComputeSystem(struct system *s, PCWSTR options, PWSTR *record) { return end("hcs HcsShutdownComputeSystem", s, record); }
API HcsTerminateComputeSystem(struct system *s, PCWSTR options, PWSTR *record) { return end("hcs HcsTerminateComputeSystem", s, record); }

API HcsGetComputeSystemProperties(struct system *s, PCWSTR query, PWSTR *properties, PWSTR *record)
{
	return ask("hcs HcsGetComputeSystemProperties", s->id, query ? query : L"", properties, record);
}

API HcsModifyComputeSystem(struct system *s, PCWSTR configuration, PWSTR *record) { return ask("hcs HcsModifyComputeSystem", s->id, configuration, NULL, record); }

static HRESULT watch(const void *of, void *callback, void *context, void **handle)
{
	struct watcher *w = calloc(1, sizeof *w);
	w->of = of, w->call = callback, w->context = context;
	EnterCriticalSection(&lock);
	w->next = watchers, watchers = w;
	LeaveCriticalSection(&lock);
	*handle = w;
	return 0;
}

static HRESULT unwatch(struct watcher *gone)
{
	EnterCriticalSection(&lock);
	for (struct watcher **w = &watchers; *w; w = &(*w)->next)
		if (*w == gone) {
			*w = gone->next;
			break;
		}
	LeaveCriticalSection(&lock);
	free(gone);
	return 0;
}

API HcsRegisterComputeSystemCallback(void *s, void *callback, void *context, void **handle) { return watch(s, callback, context, handle); }
API HcsUnregisterComputeSystemCallback(void *handle) { return unwatch(handle); }

/* await_exit asks the simulator when the process ends by itself. There is no answer if it never does: its system ends, or the simulator. */
static DWORD WINAPI await_exit(LPVOID process)
{
	struct process *p = process;
	char pid[16];
	struct field f = {pid, (DWORD)snprintf(pid, sizeof pid, "%lu", p->pid)};
	struct answer a = {0};
	SOCKET s = wire_open("hcs WaitProcess", &f, 1);
	if (s == INVALID_SOCKET)
		return 0;
	if (wire_answer(s, &a) && a.count == 0)
		end_process(p, a.result);
	wire_free(&a);
	closesocket(s);
	return 0;
}

API HcsRegisterProcessCallback(struct process *p, void *callback, void *context, void **handle)
{
	HRESULT hr = watch(p, callback, context, handle);
	if (p->awaited)
		return hr;
	p->awaited = TRUE;
	HANDLE thread = CreateThread(NULL, 0, await_exit, p, 0, NULL);
	if (thread)
		CloseHandle(thread);
	return hr;
}

API HcsUnregisterProcessCallback(void *handle) { return unwatch(handle); }

/* make_pipe creates a pipe of a process. The caller's end is opened for overlapped I/O (go-winio). */
static BOOL make_pipe(struct process *p, int i)
{
	WCHAR name[96];
	_snwprintf(name, 96, L"\\\\.\\pipe\\winkube-hcs-%lu-%lu-%d", GetCurrentProcessId(), p->pid, i);
	p->given[i] = CreateNamedPipeW(name, PIPE_ACCESS_DUPLEX | FILE_FLAG_OVERLAPPED | FILE_FLAG_FIRST_PIPE_INSTANCE, PIPE_TYPE_BYTE, 1, 4096, 4096, 0, NULL);
	if (p->given[i] == INVALID_HANDLE_VALUE)
		return FALSE;
	p->kept[i] = CreateFileW(name, GENERIC_READ | GENERIC_WRITE, 0, NULL, OPEN_EXISTING, 0, NULL);
	return p->kept[i] != INVALID_HANDLE_VALUE;
}

API HcsCreateProcess(struct system *s, PCWSTR parameters, struct information *info, void **process, PWSTR *record)
{
	static const WCHAR *wanted[3] = {L"\"CreateStdInPipe\":true", L"\"CreateStdOutPipe\":true", L"\"CreateStdErrPipe\":true"};
	struct field f[] = {wire_text(s->id), wire_text(parameters)};
	struct answer a = wire_call("hcs HcsCreateProcess", f, 2); /* the number of the process, and what it prints */
	HRESULT hr = (HRESULT)a.result;
	free((void *)f[0].data);
	free((void *)f[1].data);
	give(record, NULL);
	*process = NULL;
	struct process *p = calloc(1, sizeof *p);
	p->system = _wcsdup(s->id), p->pid = hr == 0 && a.count > 0 ? (DWORD)atoi(a.data[0]) : 0;
	for (int i = 0; hr == 0 && i < 3; i++)
		if (wcsstr(parameters, wanted[i]) && !make_pipe(p, i))
			hr = HRESULT_FROM_WIN32(GetLastError());
	DWORD written;
	if (hr == 0 && a.count > 1 && a.size[1] > 0 && p->kept[1])
		WriteFile(p->kept[1], a.data[1], a.size[1], &written, NULL);
	wire_free(&a);
	if (hr != 0) {
		free(p->system);
		free(p);
		return hr;
	}
	info->pid = p->pid;
	memcpy(info->pipe, p->given, sizeof p->given);
	EnterCriticalSection(&lock);
	p->next = processes, processes = p;
	LeaveCriticalSection(&lock);
	*process = p;
	return 0;
}

API HcsGetProcessInfo(struct process *p, struct information *info, PWSTR *record)
{
	give(record, NULL);
	info->pid = p->pid;
	memcpy(info->pipe, p->given, sizeof p->given);
	return 0;
}

API HcsGetProcessProperties(struct process *p, PWSTR *properties, PWSTR *record)
{
	char text[128];
	snprintf(text, sizeof text, "{\"ProcessId\":%lu,\"Exited\":%s,\"ExitCode\":%lu,\"LastWaitResult\":0}", p->pid, p->exited ? "true" : "false", p->code);
	give(properties, text);
	give(record, NULL);
	return 0;
}

API HcsTerminateProcess(struct process *p, PWSTR *record)
{
	give(record, NULL);
	end_process(p, CONTROL_C_EXIT);
	return 0;
}

API HcsSignalProcess(struct process *p, PCWSTR options, PWSTR *record) { return HcsTerminateProcess(p, record); }

/* Closing the input and resizing the console do not affect a process that only waits. */
API HcsModifyProcess(struct process *p, PCWSTR settings, PWSTR *record)
{
	give(record, NULL);
	return 0;
}

API HcsCloseProcess(struct process *p) { return 0; }
