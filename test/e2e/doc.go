// Package e2e has the tests on a real cluster: they act as users and faults do, and measure what users see. They run
// with WINKUBE_E2E=1 (make test), on the running cluster or on one that they start and remove.
package e2e
