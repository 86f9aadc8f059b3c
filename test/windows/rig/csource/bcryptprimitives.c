/* Wine 8 lacks bcryptprimitives.dll, without which Go programs do not start. This has the one function that Go calls, on top of an older
 * one that Wine has. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG length); /* RtlGenRandom */

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size)
{
	return SystemFunction036(data, (ULONG)size);
}
