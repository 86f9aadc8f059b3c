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
		"--kubeconfig=k/config":                 "--kubeconfig=k/config: want an absolute path",
		"--api-servers=10.0.0.1:8080 run":       `argument "run": want flags only`,
		"--api-servers=10.0.0.1:8080 --no-such": "unknown flag: --no-such",
		"--kubeconfig=" + config + " --max-pods=0":                                                          "--max-pods=0: want at least 1",
		"--api-servers=10.0.0.1:8080 --cloud-provider=aws":                                                  "--cloud-provider=aws: kubelets no longer have cloud providers",
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

// TestPrepareService: only an installation for kubeadm creates the directory that kubeadm writes to.
func TestPrepareService(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "var", "kubelet")
	config := "--config=" + filepath.Join(dir, "config.yaml")
	for _, c := range []struct {
		args []string
		made bool
	}{{[]string{config}, false}, {[]string{config, "--kubeadm=false"}, false}, {[]string{config, "--kubeadm"}, true}, {[]string{config, "--kubeadm"}, true}} {
		err := prepareService(c.args)
		if _, missing := os.Stat(dir); err != nil || (missing == nil) != c.made {
			t.Errorf("%q: %v, %v", c.args, err, missing)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := prepareService([]string{"--kubeadm", "--config=" + filepath.Join(dir, "file", "config.yaml")}); err == nil || !strings.HasPrefix(err.Error(), "--kubeadm: ") {
		t.Errorf("a file in the directory's place: %v", err)
	}
}

func TestCheckCRIService(t *testing.T) {
	for args, want := range map[string]string{
		"":                         "",
		"--v=2":                    "",
		"--listen=tcp://0.0.0.0:1": `--listen="tcp://0.0.0.0:1": want `,
		"--pod-logs-dir=logs":      "--pod-logs-dir=logs: want an absolute path",
		"--docker-endpoint=host":   "--docker-endpoint=host: ",
		"run":                      `argument "run": want flags only`,
		"--kubeconfig=k":           "unknown flag: --kubeconfig",
	} {
		if _, err := checkCRIService(strings.Fields(args)); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestCheckServiceFiles: the files of --config and --kubeadm-flags are checked with the flags; kubeadm may write them later.
func TestCheckServiceFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	head := "apiVersion: " + configVersion + "\nkind: " + configKind + "\n"
	good := file("good.yaml", head+"shutdownGracePeriod: 40s\nshutdownGracePeriodCriticalPods: 10s\nmaxPods: 20\n")
	bad := file("bad.yaml", head+"maxPods: 20\nshutdownGracePeriodCriticalPods: 10s\n")
	flags := file("kubeadm-flags.env", `KUBELET_KUBEADM_ARGS="--kubeconfig=`+file("config", "")+`"`+"\n")
	for _, c := range []struct {
		args []string
		time time.Duration
		want string
	}{
		{args: []string{"--kubeadm-flags=" + flags, "--config=" + good}, time: 55 * time.Second},
		{args: []string{"--kubeadm-flags=" + flags, "--config=" + good, "--shutdown-grace-period=1m"}, time: 75 * time.Second},
		{args: []string{"--kubeadm-flags=" + flags, "--config=" + bad}, want: "shutdownGracePeriod"},
		{args: []string{"--kubeadm-flags=" + flags, "--config=" + good, "--max-pods=0"}, want: "--max-pods=0: want at least 1"},
		{args: []string{"--api-servers=10.0.0.1:8080", "--config=" + filepath.Join(dir, "none")}, want: filepath.Join(dir, "none") + ": "},
		{args: []string{"--bootstrap-kubeconfig=" + filepath.Join(dir, "none"), "--kubeconfig=" + filepath.Join(dir, "later"), "--config=" + filepath.Join(dir, "none")}},
		{args: []string{"--api-servers=10.0.0.1:8080", "--write-config-to=" + filepath.Join(dir, "out")}, want: "cannot be an argument of a service"},
	} {
		shutdown, err := checkService(append(c.args, "--root-dir="+dir))
		if c.want == "" && (err != nil || shutdown != c.time) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, %v; want %v, %q", c.args, shutdown, err, c.time, c.want)
		}
	}
}

// TestSecondTry: a failed attempt leaves no value behind that would override the files in the next one.
func TestSecondTry(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	head := "apiVersion: " + configVersion + "\nkind: " + configKind + "\n"
	write("config.yaml", head+"maxPods: 20\nregisterWithTaints: [{key: a, effect: NoSchedule}]\nauthentication: {x509: {clientCAFile: none}}\n")
	args := []string{"--api-servers=http://10.0.0.1:8080", "--root-dir=" + dir, "--config=" + filepath.Join(dir, "config.yaml"), "--kubeadm-flags=" + filepath.Join(dir, "flags")}
	if _, _, _, err := prepare(args); err == nil || !strings.Contains(err.Error(), "config.yaml:5: authentication.x509.clientCAFile") {
		t.Fatal(err)
	}
	write("config.yaml", head+"maxPods: 30\nnodeLeaseDurationSeconds: 60\nregisterWithTaints: [{key: b, effect: NoSchedule}]\n")
	write("flags", `KUBELET_KUBEADM_ARGS="--max-pods=40"`)
	_, _, cfg, err := prepare(args)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Node.MaxPods != 40 || len(cfg.Node.Taints) != 1 || cfg.Node.Taints[0].Key != "b" {
		t.Errorf("%d pods, taints %v; want 40 and b", cfg.Node.MaxPods, cfg.Node.Taints)
	}
	if cfg.Node.LeaseDuration != time.Minute || *cfg.Node.MaxImages != 50 {
		t.Errorf("a Lease of %s, %d images; want 1m and 50", cfg.Node.LeaseDuration, *cfg.Node.MaxImages)
	}
}
