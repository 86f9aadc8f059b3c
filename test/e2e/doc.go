// Package e2e holds the tests on a real cluster: what users do and what happens to their machines goes in, what they would see is
// measured. They run with WINKUBE_E2E=1 (make test), on the cluster that runs or else on one that they bring up and take down.
package e2e
