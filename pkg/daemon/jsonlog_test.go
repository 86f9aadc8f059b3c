package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// TestJSON: entries have upstream's keys, and klog's own verbosity applies, changed or not.
func TestJSON(t *testing.T) {
	state := klog.CaptureState()
	defer state.Restore()
	var out bytes.Buffer
	logJSON(&out)
	var level klog.Level
	if err := level.Set("2"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = level.Set("0") }()
	pod := &metav1.ObjectMeta{Namespace: "ns", Name: "web"}
	klog.V(3).InfoS("not said")
	klog.V(2).InfoS("Pod came", "pod", klog.KObj(pod), "took", 1500*time.Millisecond, "n", 3)
	klog.ErrorS(errors.New("no room"), "Cannot", "level", "x")
	klog.Infof("plain %d\n", 7)
	want := []map[string]any{
		{"msg": "Pod came", "v": 2.0, "pod": map[string]any{"name": "web", "namespace": "ns"}, "took": "1.5s", "n": 3.0},
		{"msg": "Cannot", "err": "no room", "level": "x"},
		{"msg": "plain 7", "v": 0.0},
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(want) {
		t.Fatalf("got %d lines:\n%s", len(lines), out.String())
	}
	for i, line := range lines {
		var got map[string]any
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if ts, ok := got["ts"].(float64); !ok || time.Since(time.UnixMilli(int64(ts))).Abs() > time.Hour {
			t.Errorf("ts is %v", got["ts"])
		}
		if caller, _ := got["caller"].(string); !strings.HasPrefix(caller, "jsonlog_test.go:") {
			t.Errorf("caller is %q", caller)
		}
		delete(got, "ts")
		delete(got, "caller")
		if !reflect.DeepEqual(got, want[i]) {
			t.Errorf("got  %v\nwant %v", got, want[i])
		}
	}
}
