package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCheckService(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"":                                      "want exactly one of --kubeconfig and --api-servers",
		"--kubeconfig=k/config":                 "--kubeconfig=k/config: want a whole path",
		"--api-servers=10.0.0.1:8080 run":       `argument "run": want flags only`,
		"--api-servers=10.0.0.1:8080 --no-such": "unknown flag: --no-such",
		"--kubeconfig=" + config + " --max-pods=0":                                                          "--max-pods=0: want at least 1",
		"--api-servers=10.0.0.1:8080 --shutdown-grace-period=10s --shutdown-grace-period-critical-pods=20s": "want 0 to 10s",
	} {
		if _, err := checkService(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	common := []string{"--kubeconfig=" + config, "--node-ip=", "--root-dir=" + t.TempDir()}
	if shutdown, err := checkService(common); err != nil || shutdown != 0 {
		t.Errorf("%v, %v", shutdown, err)
	}
	if shutdown, err := checkService(append(common, "--shutdown-grace-period=1m")); err != nil || shutdown != 75*time.Second {
		t.Errorf("%v, %v", shutdown, err)
	}
}
