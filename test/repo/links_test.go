package repo_test

import (
	"slices"
	"strings"
	"testing"
)

// unlinked are packages that a program must not link, even indirectly.
var unlinked = []struct{ program, pkg, why string }{
	{"cmd/kubelet", "pkg/proxy/relay/epoll", "hostPorts are served by the portable plane"},
	{"cmd/kubelet", "pkg/proxy/relay/addresses", "the kubelet adds no address of a Service"},
	{"cmd/kubelet", "pkg/proxy/connect", "the kubelet serves no Service"},
	{"cmd/kubelet", "pkg/proxy/relay/tuning", "the kubelet changes no setting for a relay"},
}

// TestUnlinked follows the imports of each program.
func TestUnlinked(t *testing.T) {
	imports := map[string][]string{}
	for _, s := range load(t) {
		for _, imported := range s.imports {
			if to, ours := strings.CutPrefix(imported, module); ours && !s.test {
				imports[s.dir] = append(imports[s.dir], to)
			}
		}
	}
	for _, rule := range unlinked {
		way := map[string]string{rule.program: ""} // the importer of each package
		for queue := []string{rule.program}; len(queue) > 0; queue = queue[1:] {
			for _, to := range imports[queue[0]] {
				if _, known := way[to]; !known {
					way[to] = queue[0]
					queue = append(queue, to)
				}
			}
		}
		if _, linked := way[rule.pkg]; !linked {
			continue
		}
		path := []string{rule.pkg}
		for at := way[rule.pkg]; at != ""; at = way[at] {
			path = append(path, at)
		}
		slices.Reverse(path)
		t.Errorf("%s: %s", strings.Join(path, " -> "), rule.why)
	}
}

// TestTuning: only the proxy's program calls code that changes the host's settings.
func TestTuning(t *testing.T) {
	for _, s := range load(t) {
		if slices.Contains(s.imports, module+"pkg/proxy/relay/tuning") && s.dir != "cmd/kube-proxy/app" {
			t.Errorf("%s imports tuning: only the proxy's program may change settings of the host", s.path)
		}
	}
}
