package host

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAppArmor(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	before := [2]string{appArmorSwitch, appArmorProfiles}
	t.Cleanup(func() { appArmorSwitch, appArmorProfiles = before[0], before[1] })
	for text, want := range map[string]bool{"Y\n": true, "N\n": false, "": false} {
		appArmorSwitch = write("enabled", text)
		if AppArmor() != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
	appArmorSwitch, appArmorProfiles = filepath.Join(dir, "none"), filepath.Join(dir, "none")
	if AppArmor() || !AppArmorProfile("any") {
		t.Error("a host that tells nothing")
	}
	appArmorProfiles = write("profiles", "docker-default (enforce)\nk8s (odd) name (complain)\nhat//null (enforce)\n")
	for name, want := range map[string]bool{"docker-default": true, "k8s (odd) name": true, "docker": false, "k8s": false, "": false} {
		if AppArmorProfile(name) != want {
			t.Errorf("%q: want %v", name, want)
		}
	}
}
