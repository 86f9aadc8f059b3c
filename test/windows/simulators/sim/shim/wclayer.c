/* The part of vmcompute.dll that dockerd.exe uses besides HNS: layers of images and containers. Signatures: hcsshim's //sys lines
 * (internal/wclayer/wclayer.go). The simulator decides and logs. A layer that it allows is a directory here, which the calling program
 * creates, as HCS does for its caller. */
#include "wire.h"
#include <objbase.h>

#define API __declspec(dllexport) HRESULT WINAPI

struct driver_info { int flavour; PCWSTR home; };                       /* hcsshim internal/wclayer/layerutils.go driverInfo */
struct descriptor { GUID id; ULONG flags; PCWSTR path; };               /* WC_LAYER_DESCRIPTOR */

/* path_of joins the driver's home and a layer's name; if home is empty, the name is a full path. */
static void path_of(const struct driver_info *info, PCWSTR id, WCHAR *path)
{
	if (info && info->home && info->home[0])
		_snwprintf(path, MAX_PATH * 4, L"%ls\\%ls", info->home, id);
	else
		_snwprintf(path, MAX_PATH * 4, L"%ls", id);
	path[MAX_PATH * 4 - 1] = 0;
}

static BOOL is_there(PCWSTR path)
{
	DWORD a = GetFileAttributesW(path);
	return a != INVALID_FILE_ATTRIBUTES && (a & FILE_ATTRIBUTE_DIRECTORY);
}

/* ask sends a layer's path, whether it exists, and its parents' paths, one per line, to the simulator. */
static struct answer ask(const char *function, PCWSTR path, const struct descriptor *parents, ULONG_PTR count, PCWSTR more)
{
	size_t size = 1;
	for (ULONG_PTR i = 0; i < count; i++)
		size += wcslen(parents[i].path) + 1;
	WCHAR *lines = calloc(size, sizeof(WCHAR));
	for (ULONG_PTR i = 0; lines && i < count; i++) {
		if (i > 0)
			wcscat(lines, L"\n");
		wcscat(lines, parents[i].path);
	}
	struct field f[] = {wire_text(path), wire_text(is_there(path) ? L"there" : L""), wire_text(lines), wire_text(more)};
	struct answer a = wire_call(function, f, 4);
	for (int i = 0; i < 4; i++)
		free((void *)f[i].data);
	free(lines);
	return a;
}

static HRESULT done(struct answer a)
{
	HRESULT hr = (HRESULT)a.result;
	wire_free(&a);
	return hr;
}

static HRESULT last_error(void) { return HRESULT_FROM_WIN32(GetLastError()); }

#define LAYER(NAME)                                                              \
	API NAME(struct driver_info *info, PCWSTR id)                            \
	{                                                                        \
		WCHAR path[MAX_PATH * 4];                                        \
		path_of(info, id, path);                                         \
		return done(ask("hcs " #NAME, path, NULL, 0, NULL));             \
	}

LAYER(ActivateLayer) LAYER(DeactivateLayer) LAYER(UnprepareLayer)

API PrepareLayer(struct driver_info *info, PCWSTR id, struct descriptor *parents, ULONG_PTR count)
{
	WCHAR path[MAX_PATH * 4];
	path_of(info, id, path);
	return done(ask("hcs PrepareLayer", path, parents, count, NULL));
}

API CreateLayer(struct driver_info *info, PCWSTR id, PCWSTR parent)
{
	WCHAR path[MAX_PATH * 4];
	path_of(info, id, path);
	HRESULT hr = done(ask("hcs CreateLayer", path, NULL, 0, parent));
	return hr == 0 && !CreateDirectoryW(path, NULL) ? last_error() : hr;
}

API CreateSandboxLayer(struct driver_info *info, PCWSTR id, ULONG_PTR parent, struct descriptor *parents, ULONG_PTR count)
{
	WCHAR path[MAX_PATH * 4];
	path_of(info, id, path);
	HRESULT hr = done(ask("hcs CreateSandboxLayer", path, parents, count, NULL));
	if (hr != 0)
		return hr;
	if (!CreateDirectoryW(path, NULL))
		return last_error();
	if (wcslen(path) + 16 < MAX_PATH * 4) {
		wcscat(path, L"\\sandbox.vhdx");
		HANDLE file = CreateFileW(path, GENERIC_WRITE, 0, NULL, CREATE_NEW, 0, NULL);
		if (file == INVALID_HANDLE_VALUE)
			return last_error();
		CloseHandle(file);
	}
	return 0;
}

static BOOL remove_all(PCWSTR path)
{
	WCHAR below[MAX_PATH * 4];
	WIN32_FIND_DATAW found;
	_snwprintf(below, MAX_PATH * 4, L"%ls\\*", path);
	HANDLE find = FindFirstFileW(below, &found);
	if (find != INVALID_HANDLE_VALUE) {
		do {
			if (!wcscmp(found.cFileName, L".") || !wcscmp(found.cFileName, L".."))
				continue;
			_snwprintf(below, MAX_PATH * 4, L"%ls\\%ls", path, found.cFileName);
			if (found.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY)
				remove_all(below);
			else
				DeleteFileW(below);
		} while (FindNextFileW(find, &found));
		FindClose(find);
	}
	return RemoveDirectoryW(path);
}

API DestroyLayer(struct driver_info *info, PCWSTR id)
{
	WCHAR path[MAX_PATH * 4];
	path_of(info, id, path);
	HRESULT hr = done(ask("hcs DestroyLayer", path, NULL, 0, NULL));
	return hr == 0 && !remove_all(path) ? last_error() : hr;
}

API LayerExists(struct driver_info *info, PCWSTR id, DWORD *exists)
{
	WCHAR path[MAX_PATH * 4];
	path_of(info, id, path);
	*exists = is_there(path);
	return done(ask("hcs LayerExists", path, NULL, 0, NULL));
}

/* GetLayerMountPath is called twice: first for the length, in UTF-16 units including the final zero. */
API GetLayerMountPath(struct driver_info *info, PCWSTR id, ULONG_PTR *length, PWSTR buffer)
{
	WCHAR path[MAX_PATH * 4];
	path_of(info, id, path);
	struct answer a = ask("hcs GetLayerMountPath", path, NULL, 0, buffer ? L"buffer" : NULL);
	HRESULT hr = (HRESULT)a.result;
	if (hr == 0 && a.count > 0) {
		int size = MultiByteToWideChar(CP_UTF8, 0, a.data[0], -1, NULL, 0);
		if (!buffer)
			*length = (ULONG_PTR)size;
		else if (*length < (ULONG_PTR)size)
			hr = HRESULT_FROM_WIN32(ERROR_INSUFFICIENT_BUFFER);
		else
			MultiByteToWideChar(CP_UTF8, 0, a.data[0], -1, buffer, size);
	}
	wire_free(&a);
	return hr;
}

/* NameToGuid always gives the same name the same GUID. Callers do not depend on the GUIDs that Windows would give. */
API NameToGuid(PCWSTR name, GUID *guid)
{
	struct field f[] = {wire_text(name)};
	struct answer a = wire_call("hcs NameToGuid", f, 1);
	free((void *)f[0].data);
	if (a.result == 0 && a.count > 0 && a.size[0] == sizeof *guid)
		memcpy(guid, a.data[0], sizeof *guid);
	return done(a);
}
