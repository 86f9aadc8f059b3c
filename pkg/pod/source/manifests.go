package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/filewatch"
)

// quietPeriod is how long a directory must be unchanged before it is read, because editors save in several steps.
const quietPeriod = 200 * time.Millisecond

// maxManifest is the maximum size of a manifest, in bytes.
const maxManifest = 10 << 20

// manifests is the last content of one static source. An unusable manifest does not remove the pods of its last good version.
type manifests struct {
	source string // "file" or "http"
	node   string
	good   map[string][]*v1.Pod // by file path or URL
	sums   map[string][sha256.Size]byte
}

func newManifests(source, node string) *manifests {
	return &manifests{source: source, node: node, good: map[string][]*v1.Pod{}, sums: map[string][sha256.Size]byte{}}
}

// read parses one manifest; seen is when it was read.
func (m *manifests) read(origin string, data []byte, seen time.Time) {
	sum := sha256.Sum256(data)
	if m.sums[origin] == sum {
		return
	}
	m.sums[origin] = sum // also for an invalid one, so that it is logged once
	pods, err := staticPods(data, m.source, origin, m.node, seen)
	if err != nil {
		klog.ErrorS(err, "Cannot use a manifest of static pods; keeping its last good version", "origin", origin)
		return
	}
	m.good[origin] = pods
}

// keep forgets all origins except the given ones.
func (m *manifests) keep(origins []string) {
	for origin := range m.sums {
		if !slices.Contains(origins, origin) {
			delete(m.sums, origin)
			delete(m.good, origin)
		}
	}
}

// pods lists all pods. If two manifests define the same pod, the first origin in sort order wins.
func (m *manifests) pods() []*v1.Pod {
	var origins []string
	for origin := range m.good {
		origins = append(origins, origin)
	}
	slices.Sort(origins)
	var all []*v1.Pod
	for _, origin := range origins {
		for _, pod := range m.good[origin] {
			if i := slices.IndexFunc(all, func(p *v1.Pod) bool { return nameOf(p) == nameOf(pod) }); i >= 0 {
				klog.ErrorS(nil, "Two manifests define the same pod; ignoring the second", "pod", klog.KObj(pod), "origin", origin)
				continue
			}
			if i := slices.IndexFunc(all, func(p *v1.Pod) bool { return p.UID == pod.UID }); i >= 0 {
				klog.ErrorS(nil, "Two manifests have the same metadata.uid; ignoring the second. Change or remove its metadata.uid", "pod", klog.KObj(pod), "origin", origin, "uid", pod.UID)
				continue
			}
			all = append(all, pod)
		}
	}
	return all
}

// followPath reads a manifest file or directory immediately, after each change, and periodically.
func (s *Source) followPath(ctx context.Context, out chan<- batch) error {
	m := newManifests("file", s.cfg.NodeName)
	watcher, err := filewatch.New()
	var changed <-chan struct{}
	if err != nil {
		klog.ErrorS(err, "Cannot watch the static pods; reading them on a timer", "path", s.cfg.Path)
	} else {
		defer watcher.Close()
		changed = watcher.Changed()
	}
	period := s.cfg.Clock.NewTicker(s.cfg.PathPeriod)
	defer period.Stop()
	var quiet <-chan time.Time
	watched := false
	for {
		if !watched && err == nil {
			watched = watcher.Add(s.cfg.Path) == nil // it may not exist yet
		}
		if quiet == nil {
			if readErr := readManifests(s.cfg.Path, m, s.cfg.Clock.Now()); readErr != nil {
				klog.ErrorS(readErr, "Cannot read the static pods; keeping the known ones", "path", s.cfg.Path)
			} else {
				select {
				case out <- batch{source: "file", full: true, set: m.pods()}:
				case <-ctx.Done():
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			changes, lost := watcher.Take()
			if lost != nil {
				klog.ErrorS(lost, "Lost file events of the static pods' directory; reading it again", "path", s.cfg.Path)
			}
			quiet = s.cfg.Clock.After(quietPeriod)
			if slices.ContainsFunc(changes, func(c filewatch.Change) bool { return c.Gone && c.Path == filepath.Clean(s.cfg.Path) }) {
				watched = false
			}
		case <-quiet:
			quiet = nil
		case <-period.C():
			quiet = nil
		}
	}
}

// readManifests reads one manifest, or all in a directory except hidden files and subdirectories. A missing path has no manifests.
func readManifests(path string, m *manifests, now time.Time) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		m.keep(nil)
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read manifests: %w", err)
	}
	files := []string{path}
	if info.IsDir() {
		files = nil
		entries, err := os.ReadDir(path)
		if err != nil {
			return fmt.Errorf("cannot list manifests: %w", err)
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
	}
	var present []string
	for _, file := range files {
		data, err := readManifest(file)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNoFile):
			continue
		case err != nil:
			klog.ErrorS(err, "Cannot read a manifest of static pods; keeping its last good version", "file", file)
		default:
			m.read(file, data, now)
		}
		present = append(present, file)
	}
	m.keep(present)
	return nil
}

var errNoFile = errors.New("not a regular file")

func readManifest(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNoFile
	}
	if info.Size() > maxManifest {
		return nil, fmt.Errorf("cannot use %s: it is larger than %d bytes", file, maxManifest)
	}
	return os.ReadFile(file)
}

// followURL polls a URL for manifests. It sends the headers that let a server answer "not modified".
func (s *Source) followURL(ctx context.Context, out chan<- batch) error {
	m := newManifests("http", s.cfg.NodeName)
	client := &http.Client{Timeout: 10 * time.Second}
	period := s.cfg.Clock.NewTicker(s.cfg.URLPeriod)
	defer period.Stop()
	var etag, modified string
	for failures := 0; ; {
		data, response, err := s.fetch(ctx, client, etag, modified)
		switch {
		case err != nil:
			if failures++; failures <= 3 {
				klog.ErrorS(err, "Cannot fetch static pods; keeping the known ones", "url", s.cfg.URL)
			}
		case response.StatusCode == http.StatusNotModified:
			failures = 0
		default:
			failures = 0
			etag, modified = response.Header.Get("ETag"), response.Header.Get("Last-Modified")
			m.read(s.cfg.URL, data, s.cfg.Clock.Now())
			select {
			case out <- batch{source: "http", full: true, set: m.pods()}:
			case <-ctx.Done():
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-period.C():
		}
	}
}

func (s *Source) fetch(ctx context.Context, client *http.Client, etag, modified string) ([]byte, *http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.cfg.URL, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot use the static pod URL %q: %w", s.cfg.URL, err)
	}
	for name, values := range s.cfg.URLHeader {
		request.Header[http.CanonicalHeaderKey(name)] = values
	}
	if etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	if modified != "" {
		request.Header.Set("If-Modified-Since", modified)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxManifest))
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read %s: %w", s.cfg.URL, err)
	case response.StatusCode == http.StatusNotModified:
		return nil, response, nil
	case response.StatusCode != http.StatusOK:
		return nil, nil, fmt.Errorf("%s answers %s; want 200", s.cfg.URL, response.Status)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, nil, fmt.Errorf("%s answers nothing; want a Pod or a PodList", s.cfg.URL)
	}
	return data, response, nil
}

// staticPods returns the static pods of a manifest in YAML or JSON: a Pod, or a PodList if it comes from a URL. If one is invalid, it
// returns none.
func staticPods(data []byte, source, origin, node string, seen time.Time) ([]*v1.Pod, error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("cannot parse %s: %w", origin, err)
	}
	if head.APIVersion != "v1" {
		return nil, fmt.Errorf("cannot use %s: apiVersion is %q; want v1", origin, head.APIVersion)
	}
	var list v1.PodList
	switch head.Kind {
	case "Pod":
		list.Items = make([]v1.Pod, 1)
		if err := yaml.UnmarshalStrict(data, &list.Items[0]); err != nil {
			return nil, fmt.Errorf("cannot parse %s: %w", origin, err)
		}
	case "PodList", "List":
		if err := yaml.UnmarshalStrict(data, &list); err != nil {
			return nil, fmt.Errorf("cannot parse %s: %w", origin, err)
		}
	default:
		return nil, fmt.Errorf("cannot use %s: kind is %q; want Pod or PodList", origin, head.Kind)
	}
	var pods []*v1.Pod
	for i := range list.Items {
		pod := &list.Items[i]
		if err := makeStatic(pod, source, origin, node, seen); err != nil {
			return nil, fmt.Errorf("cannot use %s: %w", origin, err)
		}
		pods = append(pods, pod)
	}
	return pods, nil
}
