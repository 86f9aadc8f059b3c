// Package windows runs the Windows binaries on Linux under Wine. A green run proves that our calls are made and their answers
// handled; it does not prove that Windows accepts them.
//
// So far this is a smoke test: both programs start, kubelet.exe registers its node, proxy.exe serves one service on loopback.
package windows
