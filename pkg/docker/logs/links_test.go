package logs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLogLinks(t *testing.T) {
	top, root := t.TempDir(), t.TempDir()
	l := logLinks{filepath.Join(top, "pods")}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"}}
	write := func(id string) string {
		file := logFile(root, id)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(id), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	names := func() string {
		var out []string
		err := filepath.WalkDir(top, func(name string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				data, _ := os.ReadFile(name)
				rel, _ := filepath.Rel(top, name)
				out = append(out, filepath.ToSlash(rel)+"="+string(data))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(out, " ")
	}
	for range 2 {
		for attempt, id := range []string{"aaa", "bbb"} {
			if err := l.add(p, "c", attempt, write(id)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, want := names(), "containers/web_shop_c-aaa.log=aaa containers/web_shop_c-bbb.log=bbb pods/shop_web_u1/c/0.log=aaa pods/shop_web_u1/c/1.log=bbb"; got != want {
		t.Errorf("have %s\nwant %s", got, want)
	}
	if err := l.remove(podLinks("shop", "web", "u1"), func(target string) bool { return idOf(target) == "aaa" }); err != nil {
		t.Fatal(err)
	}
	if got, want := names(), "containers/web_shop_c-bbb.log=bbb pods/shop_web_u1/c/1.log=bbb"; got != want {
		t.Errorf("have %s\nwant %s", got, want)
	}
	// An agent that died between creating a directory and its link.
	for _, dir := range []string{"shop_web_u1/died", "shop_web_u2/died"} {
		if err := os.MkdirAll(filepath.Join(l.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.sweep(); err != nil || names() == "" {
		t.Errorf("sweep took what is in use: %v", err)
	}
	if pods, containers := podDirs(t, l.dir), podDirs(t, filepath.Join(l.dir, "shop_web_u1")); len(pods) != 1 || len(containers) != 1 {
		t.Errorf("empty directories stay: %v %v", pods, containers)
	}
	if err := os.Remove(logFile(root, "bbb")); err != nil {
		t.Fatal(err)
	}
	if err := l.sweep(); err != nil || len(podDirs(t, l.dir)) != 1 {
		t.Errorf("sweep took the link of a container that has not started: %v", err)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	if err := l.sweep(); err != nil || names() != "" || len(podDirs(t, l.dir)) > 0 {
		t.Errorf("left: %s, %v", names(), err)
	}
	if err := l.remove(podLinks("shop", "web", "u1"), func(string) bool { return true }); err != nil {
		t.Errorf("removing nothing: %v", err)
	}
	if name := flatLink("shop", strings.Repeat("w", 253), "c", "aaa"); len(name) != 255 {
		t.Errorf("name of %d bytes", len(name))
	}
}

func podDirs(t *testing.T, dir string) []os.DirEntry {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// TestLogLinksOfOthers puts links where ours belong, as a pod that mounts the directories can: nothing outside is changed.
func TestLogLinksOfOthers(t *testing.T) {
	top, foreign := t.TempDir(), t.TempDir()
	l := logLinks{filepath.Join(top, "pods")}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"}}
	victim := filepath.Join(foreign, "0.log")
	target := logFile("/root", "aaa")
	if err := os.MkdirAll(filepath.Join(l.dir, "shop_web_u1"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{victim: target, filepath.Join(l.dir, "shop_web_u1", "c"): foreign, filepath.Join(l.dir, "shop_web_u2"): foreign} {
		if err := os.Symlink(to, name); err != nil {
			t.Skip("no links here")
		}
	}
	if err := l.add(p, "c", 1, target); err == nil {
		t.Error("a link was made outside")
	}
	_ = l.remove("shop_web_u1", func(string) bool { return true })
	_ = l.sweep()
	if entries := podDirs(t, foreign); len(entries) != 1 {
		t.Errorf("outside is now %v", entries)
	}
	if have, err := os.Readlink(victim); err != nil || have != target {
		t.Errorf("outside: %q, %v", have, err)
	}
}
