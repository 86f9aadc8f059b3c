// Package nstest gives tests of the relay on Linux separate network namespaces, which needs root: one for the test's
// thread, and neighbours on one network. The calling thread, which is in the namespace, starts programs; a
// command.Patient would start them elsewhere.
package nstest
