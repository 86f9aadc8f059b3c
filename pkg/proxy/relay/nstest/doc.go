// Package nstest gives tests of the relay on Linux separate network namespaces, which need root: one for the test's thread, and neighbours on one
// network. Programs are started by the thread that calls, which is in the namespace; a command.Patient would start them elsewhere.
package nstest
