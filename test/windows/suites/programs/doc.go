// Package programs runs the shipped Windows binaries on Linux under Wine. A green run proves that our calls are made and their answers
// handled; it does not prove that Windows accepts them.
//
// Both programs start, kubelet.exe registers its node over Docker's pipe, proxy.exe serves one service on loopback; hosts and pods with
// something wrong; what docs/guides/windows.md has users type. Tests of the pages' indexes (windows-checks.md, windows-quirks.md) are here, too.
package programs
