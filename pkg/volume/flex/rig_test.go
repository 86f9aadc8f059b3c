package flex

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/volumetest"
	"github.com/winkube/winkube/pkg/wake"
)

const (
	driverName = "example.com/dir"
	plainInit  = `{"status": "Success", "capabilities": {"attach": false}}`
	success    = `{"status": "Success"}`
	failure    = `{"status": "Failure", "message": "no"}`
	lacking    = `{"status": "Not supported"}`
)

// fake is a host whose driver mounts in the rig's kernel. It records calls as "mount VOLUME", and their options separately.
type fake struct {
	t      *testing.T
	mounts bool
	kernel *volumetest.Kernel

	mu      sync.Mutex
	calls   []string
	options map[string]string // JSON of the last call, by its name
	says    map[string]string // what it prints instead of Success
	fails   map[string]error  // how it ends
	hung    map[string]chan struct{}
}

func (f *fake) Run(ctx context.Context, _ []byte, name string, args ...string) ([]byte, error) {
	f.mu.Lock()
	if !filepath.IsAbs(name) { // of the host
		defer f.mu.Unlock()
		f.calls = append(f.calls, name+" "+filepath.Base(args[len(args)-1]))
		return []byte(f.says[name]), f.fails[name]
	}
	what := args[0]
	for _, a := range args[1:] {
		if strings.HasPrefix(a, "{") {
			f.options[args[0]] = a
		} else {
			what += " " + filepath.Base(a)
		}
	}
	f.calls = append(f.calls, what)
	if wrong := f.invalid(args); wrong != "" {
		f.t.Errorf("%s: %s: %q", what, wrong, args)
	}
	says, ok := f.says[args[0]]
	hung, err := f.hung[args[0]], f.fails[args[0]]
	f.mu.Unlock()
	if hung != nil {
		select {
		case <-hung:
		case <-ctx.Done():
			return nil, errors.New("signal: killed")
		}
	}
	if err != nil {
		err = errors.Join(err)
		return []byte(says), &wrapped{"cannot run " + name + " " + strings.Join(args, " "), err}
	}
	if ok {
		return []byte(says), nil
	}
	switch args[0] {
	case "init":
		return []byte(plainInit), nil
	case "waitforattach":
		return []byte(`{"status": "Success", "device": "` + args[1] + `-1"}`), nil
	case "mount", "mountdevice":
		if f.mounts {
			f.kernel.Add(args[1], "")
		}
	case "unmount", "unmountdevice":
		if f.mounts {
			_ = f.kernel.Unmount(args[1])
		}
	case "expandfs":
	default:
		return []byte(lacking), nil
	}
	return []byte(success), nil
}

// invalid returns what upstream's kubelet would not pass to a driver, "" if there is nothing. Programs of the host have no path.
func (f *fake) invalid(args []string) string {
	shape := map[string]string{
		"init": "", "waitforattach": "DEVICE JSON", "mountdevice": "PATH DEVICE JSON", "mount": "PATH JSON", "unmount": "PATH", "unmountdevice": "PATH",
		"expandfs": "JSON DEVICE MOUNT SIZE SIZE",
	}
	want, known := shape[args[0]]
	switch fields := strings.Fields(want); {
	case !known:
		return "no call of a driver"
	case len(fields) != len(args)-1:
		return "want " + want
	default:
		for i, kind := range fields {
			if !f.fits(kind, args[i+1]) {
				return "want " + want
			}
		}
	}
	if args[0] == "expandfs" && len(args[4]) == len(args[5]) && args[4] <= args[5] {
		return "the new size comes before the old one, and is larger"
	}
	return ""
}

func (f *fake) fits(kind, arg string) bool {
	switch kind {
	case "JSON":
		return json.Valid([]byte(arg))
	case "PATH":
		return filepath.IsAbs(arg)
	case "MOUNT":
		on, _ := f.kernel.IsMount(arg)
		return on
	case "SIZE":
		size, err := strconv.ParseInt(arg, 10, 64)
		return err == nil && size > 0
	}
	return arg == "" || filepath.IsAbs(arg) // DEVICE
}

// wrapped is an error with a command line, as a Runner has it.
type wrapped struct {
	line string
	err  error
}

func (w *wrapped) Error() string { return w.line + ": " + w.err.Error() }
func (w *wrapped) Unwrap() error { return w.err }

func (f *fake) set(call, says string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if says == "" {
		delete(f.says, call)
		return
	}
	f.says[call] = says
}

func (f *fake) seen() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.calls, ", ")
}

// rig is a Manager with the kind, over a driver in memory.
type rig struct {
	*volumetest.Rig
	t       *testing.T
	dir     string
	driver  *fake
	run     command.Runner
	secrets map[string]*v1.Secret
	events  volumetest.Events
	patches []string // of claims; to read after want
	kind    *Kind
	changed wake.Signal

	mu   sync.Mutex
	node *v1.Node
	next chan struct{}
}

// NodeState implements Objects.
func (r *rig) NodeState() (*v1.Node, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node, r.next
}

// show gives the agent a Node with these volumes in use and attached, with their devices.
func (r *rig) show(inUse string, attached map[string]string) *v1.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.node = &v1.Node{}
	if inUse != "" {
		r.node.Status.VolumesInUse = []v1.UniqueVolumeName{v1.UniqueVolumeName(inUse)}
	}
	for volume, device := range attached {
		r.node.Status.VolumesAttached = append(r.node.Status.VolumesAttached, v1.AttachedVolume{Name: v1.UniqueVolumeName(volume), DevicePath: device})
	}
	close(r.next)
	r.next = make(chan struct{})
	return r.node
}

// Claim implements Objects.
func (r *rig) Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return r.API.Claim(ctx, namespace, name)
}

// PersistentVolume implements Objects.
func (r *rig) PersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	return r.API.PersistentVolume(ctx, name)
}

// PatchClaimStatus implements Objects.
func (r *rig) PatchClaimStatus(_ context.Context, namespace, name string, patch []byte) (*v1.PersistentVolumeClaim, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.patches = append(r.patches, namespace+"/"+name+" "+string(patch))
	return r.API.Patched(namespace, name, patch)
}

// Secret implements Objects.
func (r *rig) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	if r.API.Down != nil {
		return nil, r.API.Down
	}
	if s := r.secrets[namespace+"/"+name]; s != nil {
		return s, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

func newRig(t *testing.T, platform pod.Platform) *rig {
	t.Helper()
	r := &rig{Rig: volumetest.New(t, platform), t: t, dir: t.TempDir(), secrets: map[string]*v1.Secret{}, changed: wake.New(), next: make(chan struct{})}
	r.driver = &fake{t: t, mounts: platform.OS != "windows", kernel: r.Kernel, options: map[string]string{}, says: map[string]string{}, fails: map[string]error{}, hung: map[string]chan struct{}{}}
	r.run = r.driver
	r.install(driverName)
	r.restart()
	return r
}

// install puts the program of a driver where the kind looks for it.
func (r *rig) install(name string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, escape(name), filepath.Base(name))
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755)); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// restart makes an agent that only knows what is on disk.
func (r *rig) restart() {
	r.t.Helper()
	if r.kind != nil {
		r.wait()
	}
	r.kind = New(r.Host, Parts{NodeName: "n", Dir: r.dir, Run: r.run, Objects: r, Events: &r.events, Clock: r.Clock, Changed: r.changed})
	r.Restart(r.kind)
}

// inline is a pod with the volume v of the driver.
func (r *rig) inline(uid string, source v1.FlexVolumeSource) *v1.Pod {
	p := volumetest.Pod(volumetest.Vol("v", v1.VolumeSource{FlexVolume: &source}))
	p.UID = types.UID(uid)
	return p
}

// claimed is a pod with the claim data, which is bound to the volume pv.
func (r *rig) claimed(uid string, readOnly bool) *v1.Pod {
	r.t.Helper()
	if r.API.Claims["shop/data"] == nil {
		claim, pv := r.Bind("data", v1.PersistentVolumeSource{FlexVolume: &v1.FlexPersistentVolumeSource{Driver: driverName, FSType: "ext4"}})
		pv.Spec.Capacity, claim.Status.Capacity, claim.Spec.Resources.Requests = gibi(1), gibi(1), gibi(1)
	}
	p := volumetest.Pod(volumetest.ClaimVol(readOnly))
	p.UID = types.UID(uid)
	return p
}

func (r *rig) path(elements ...string) string {
	return filepath.Join(append([]string{r.Host.Root}, elements...)...)
}

// wait waits for what the kind does beside the pods.
func (r *rig) wait() {
	r.kind.growth.Wait()
	r.kind.crew.Wait()
}

func (r *rig) want(calls string) {
	r.t.Helper()
	r.wait()
	if got := r.driver.seen(); got != calls {
		r.t.Errorf("calls: %s\nwant:  %s", got, calls)
	}
}

func (r *rig) mustClean(uid string) {
	r.t.Helper()
	if err := r.Clean(r.t.Context(), types.UID(uid)); err != nil {
		r.t.Fatal(err)
	}
}

// refuses requires that Prepare fails with that text and without the secret text.
func (r *rig) refuses(p *v1.Pod, want string) {
	r.t.Helper()
	_, err := r.Prepare(r.t.Context(), p)
	if err == nil || !strings.Contains(err.Error(), want) {
		r.t.Errorf("Prepare: %v\nwant: %s", err, want)
	}
	if err != nil && strings.Contains(err.Error(), "s3cr3t") {
		r.t.Errorf("the error shows a secret: %v", err)
	}
}

// nothingLeft requires that neither disk nor mount table has a trace of a volume.
func (r *rig) nothingLeft() {
	r.t.Helper()
	if r.Kernel != nil && len(r.Kernel.Points) > 0 {
		r.t.Errorf("mounted: %q", r.Kernel.Points)
	}
	if left := r.kind.InUse(); len(left) > 0 {
		r.t.Errorf("in use: %q", left)
	}
	_ = filepath.WalkDir(r.Host.Root, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && (strings.HasPrefix(path, r.path("pods")+"/") || filepath.Base(filepath.Dir(path)) == mountsDir) {
			r.t.Errorf("left: %s", path)
		}
		return nil
	})
}

func sorted(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return strings.Join(out, "\n")
}
