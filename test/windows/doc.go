// Package windows runs the Windows binaries, as they are shipped, on Linux under Wine. A green run proves that our calls are made and their
// answers handled; it does not prove that Windows accepts them.
//
// This is a smoke test: both programs start, kubelet.exe registers its node over Docker's pipe, proxy.exe serves one service on loopback.
// Beside it stand the rig (rig), the simulators (engine, hns, ...), the packages' own tests (cover) and the third node of the cluster (join).
package windows
