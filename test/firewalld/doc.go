// Package firewalld tests pkg/network/firewalld with Debian's firewalld.
package firewalld
