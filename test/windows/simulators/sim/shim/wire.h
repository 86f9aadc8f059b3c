/* The protocol between shims and simulators: one TCP connection on loopback per call. A request is a number of fields, each with its
 * length; an answer is a 32-bit result and fields. The call's name follows the function's name: on a busy machine Wine occasionally loses an
 * answer, and the simulators do not repeat a call that is asked again. Numbers are little-endian. The simulators' address is in WINKUBE_SIM,
 * or in the file that the rig writes. */
#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>
#include <ws2ipdef.h>
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADDRESS_FILE "C:\\winkube-sim.txt"
#define MAX_FIELDS 8
#define ATTEMPTS 3
#define NO_SIMULATOR 0x80004005u /* E_FAIL: simulators never answer it */

struct field { const void *data; DWORD size; };
struct answer { DWORD result; DWORD count; char *data[MAX_FIELDS]; DWORD size[MAX_FIELDS]; char fault[80]; BOOL ended; /* there was no more, whether whole or not */ };

/* refused reports whether a test wants a function ("hns HNSCall", "iphelper GetIfTable2Ex") to fail: WINKUBE_REFUSE in the program's
 * environment names the function without the service, and HNSCall with the method and the beginning of the path. */
static BOOL refused(const char *function)
{
	char name[64] = "";
	DWORD size = GetEnvironmentVariableA("WINKUBE_REFUSE", name, sizeof name);
	const char *asked = strchr(function, ' ') + 1;
	if (size == 0 || size >= sizeof name)
		return FALSE;
	return strncmp(asked, "HNSCall ", 8) == 0 ? strncmp(asked, name, size) == 0 : strcmp(asked, name) == 0;
}

static int wire_send(SOCKET s, const void *data, DWORD size)
{
	const char *p = data;
	while (size > 0) {
		int n = send(s, p, (int)size, 0);
		if (n <= 0)
			return 0;
		p += n, size -= (DWORD)n;
	}
	return 1;
}

static int wire_recv(SOCKET s, struct answer *a, void *data, DWORD size)
{
	for (DWORD got = 0; got < size;) {
		int n = recv(s, (char *)data + got, (int)(size - got), 0), error = WSAGetLastError();
		if (n <= 0) {
			a->ended = TRUE;
			snprintf(a->fault, sizeof a->fault, "%s after %lu of %lu bytes, error %d", n < 0 ? "recv failed" : "closed", got, size, error);
			return 0;
		}
		got += (DWORD)n;
	}
	return 1;
}

static void wire_free(struct answer *a)
{
	for (DWORD i = 0; i < a->count; i++)
		free(a->data[i]);
	a->count = 0;
}

/* wire_answer reads one answer; the caller frees it. Fields are zero-terminated, for use as text. */
static int wire_answer(SOCKET s, struct answer *a)
{
	DWORD head[2];
	memset(a, 0, sizeof *a);
	if (!wire_recv(s, a, head, sizeof head))
		return 0;
	if (head[1] > MAX_FIELDS) {
		snprintf(a->fault, sizeof a->fault, "an answer of %lu fields", head[1]);
		return 0;
	}
	a->result = head[0];
	for (DWORD i = 0; i < head[1]; i++) {
		DWORD size;
		char *data;
		if (!wire_recv(s, a, &size, sizeof size))
			return 0;
		if (!(data = malloc((size_t)size + 1))) {
			snprintf(a->fault, sizeof a->fault, "no memory for a field of %lu bytes", size);
			return 0;
		}
		a->data[i] = data, a->size[i] = size, a->count = i + 1;
		if (!wire_recv(s, a, data, size))
			return 0;
		data[size] = 0;
	}
	return 1;
}

/* wire_open connects and sends a request. */
static SOCKET wire_open(const char *function, const struct field *fields, DWORD count)
{
	WSADATA unused;
	char address[64] = "";
	WSAStartup(MAKEWORD(2, 2), &unused);
	if (!GetEnvironmentVariableA("WINKUBE_SIM", address, sizeof address)) {
		FILE *f = fopen(ADDRESS_FILE, "rb");
		if (f) {
			address[fread(address, 1, sizeof address - 1, f)] = 0;
			fclose(f);
		}
	}
	char *colon = strrchr(address, ':');
	struct sockaddr_in to = {0};
	SOCKET s = INVALID_SOCKET;
	if (colon) {
		*colon = 0;
		to.sin_family = AF_INET;
		to.sin_port = htons((u_short)atoi(colon + 1));
		to.sin_addr.s_addr = inet_addr(address);
		s = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
	}
	DWORD number = count + 1, size = (DWORD)strlen(function);
	if (s == INVALID_SOCKET || connect(s, (struct sockaddr *)&to, sizeof to) != 0 || !wire_send(s, &number, sizeof number) ||
	    !wire_send(s, &size, sizeof size) || !wire_send(s, function, size))
		goto failed;
	for (DWORD i = 0; i < count; i++)
		if (!wire_send(s, &fields[i].size, sizeof fields[i].size) || !wire_send(s, fields[i].data, fields[i].size))
			goto failed;
	return s;
failed:
	fprintf(stderr, "winkube shim: %s: there is no simulator at \"%s\": error %d\n", function, address, WSAGetLastError());
	if (s != INVALID_SOCKET)
		closesocket(s);
	return INVALID_SOCKET;
}

/* wire_call sends a request and waits. If no simulator answers, the answer is empty and its result NO_SIMULATOR. */
static struct answer wire_call(const char *function, const struct field *fields, DWORD count)
{
	struct answer a = {0};
	LARGE_INTEGER now;
	char call[160];
	QueryPerformanceCounter(&now);
	snprintf(call, sizeof call, "%s %lx-%lx-%lx%08lx", function, GetCurrentProcessId(), GetCurrentThreadId(), now.HighPart, now.LowPart);
	for (int i = 0; i < ATTEMPTS; i++) {
		SOCKET s = wire_open(call, fields, count);
		if (s == INVALID_SOCKET) {
			a.result = NO_SIMULATOR;
			return a;
		}
		int answered = wire_answer(s, &a);
		closesocket(s);
		if (answered)
			return a;
		wire_free(&a);
	}
	fprintf(stderr, "winkube shim: %s: the simulator did not answer: %s\n", call, a.fault);
	a.result = NO_SIMULATOR;
	return a;
}

/* wire_text makes a field of a UTF-16 string; NULL makes an empty field. The caller frees its data. */
static struct field wire_text(const WCHAR *text)
{
	struct field f = {NULL, 0};
	int size = text ? WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL) : 0;
	char *data = malloc((size_t)size + 1);
	if (data && size > 0 && WideCharToMultiByte(CP_UTF8, 0, text, -1, data, size, NULL, NULL) > 0)
		f.size = (DWORD)size - 1;
	f.data = data;
	return f;
}
