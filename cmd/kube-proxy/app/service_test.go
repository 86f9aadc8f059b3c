package app

import (
	"strings"
	"testing"
)

func TestCheckService(t *testing.T) {
	for args, want := range map[string]string{
		"--master=10.0.0.1:8080":                        "",
		"":                                              "want --kubeconfig or --master",
		"--kubeconfig=proxy.conf":                       "--kubeconfig=proxy.conf: want an absolute path",
		"--master=10.0.0.1:8080 --cleanup":              "be arguments of a service",
		"--master=10.0.0.1:8080 start":                  `argument "start": want flags only`,
		"--master=10.0.0.1:8080 --network-mode=a":       "--network-mode",
		"--master=10.0.0.1:8080 --no-such":              "unknown flag: --no-such",
		"--config=/no/such/file --master=10.0.0.1:8080": "/no/such/file",
	} {
		_, err := checkService(strings.Fields(args))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
