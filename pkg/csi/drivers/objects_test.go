package drivers

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	translation "k8s.io/csi-translation-lib"
)

// TestMigrated: what the annotation promises can be translated.
func TestMigrated(t *testing.T) {
	for _, name := range migrated {
		if !translation.New().IsMigratableIntreePluginByName(name) {
			t.Errorf("%s is not known to upstream's translation", name)
		}
	}
}

func TestNodePatch(t *testing.T) {
	for name, test := range map[string]struct {
		annotation string
		labels     map[string]string
		want       *info
		patch      string
		err        string
	}{
		"first driver":       {want: &info{nodeID: "x"}, patch: `{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":"{\"d\":\"x\"}"},"resourceVersion":"7"}}`},
		"another beside":     {annotation: `{"a":"b"}`, want: &info{nodeID: "x"}, patch: `{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":"{\"a\":\"b\",\"d\":\"x\"}"},"resourceVersion":"7"}}`},
		"as it is":           {annotation: `{"d":"x"}`, labels: map[string]string{"zone": "a"}, want: &info{nodeID: "x", topology: map[string]string{"zone": "a"}}},
		"another id":         {annotation: `{"d":"w"}`, want: &info{nodeID: "x"}, patch: `{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":"{\"d\":\"x\"}"},"resourceVersion":"7"}}`},
		"unreadable":         {annotation: `{`, want: &info{nodeID: "x"}, patch: `{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":"{\"d\":\"x\"}"},"resourceVersion":"7"}}`},
		"labels":             {annotation: `{"d":"x"}`, labels: map[string]string{"a": "1"}, want: &info{nodeID: "x", topology: map[string]string{"a": "1", "b": "2"}}, patch: `{"metadata":{"labels":{"b":"2"},"resourceVersion":"7"}}`},
		"collision":          {labels: map[string]string{"a": "1"}, want: &info{nodeID: "x", topology: map[string]string{"a": "2"}}, err: `detected topology value collision: driver reported "a":"2" but existing label is "a":"1"`},
		"removed":            {annotation: `{"a":"b","d":"x"}`, patch: `{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":"{\"a\":\"b\"}"},"resourceVersion":"7"}}`},
		"last removed":       {annotation: `{"d":"x"}`, patch: `{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":null},"resourceVersion":"7"}}`},
		"removed already":    {annotation: `{"a":"b"}`},
		"removed unreadable": {annotation: `{`},
	} {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7", Labels: test.labels, Annotations: map[string]string{nodeIDs: test.annotation}}}
		patch, err := nodePatch(node, "d", test.want)
		if got := message(err); got != test.err || string(patch) != test.patch {
			t.Errorf("%s: got %s, %q, want %s, %q", name, patch, got, test.patch, test.err)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestCSINodes(t *testing.T) {
	driver := func(name, id string, count int32, keys ...string) storage.CSINodeDriver {
		d := storage.CSINodeDriver{Name: name, NodeID: id, TopologyKeys: keys}
		if count >= 0 {
			d.Allocatable = &storage.VolumeNodeResources{Count: &count}
		}
		return d
	}
	one := func(d ...storage.CSINodeDriver) []storage.CSINodeDriver { return d }
	zone := map[string]string{"zone": "a", "region": "b"}
	for name, test := range map[string]struct {
		have []storage.CSINodeDriver
		want *info
		next [][]storage.CSINodeDriver
	}{
		"first":       {nil, &info{"x", zone, 5}, [][]storage.CSINodeDriver{one(driver("d", "x", 5, "region", "zone"))}},
		"beside":      {one(driver("a", "b", -1)), &info{"x", nil, 0}, [][]storage.CSINodeDriver{one(driver("a", "b", -1), driver("d", "x", -1))}},
		"as it is":    {one(driver("d", "x", 5, "zone", "region")), &info{"x", zone, 5}, nil},
		"count":       {one(driver("d", "x", 5, "zone", "region")), &info{"x", zone, 6}, [][]storage.CSINodeDriver{one(driver("d", "x", 6, "zone", "region"))}},
		"no limit":    {one(driver("d", "x", 5)), &info{"x", nil, 0}, [][]storage.CSINodeDriver{one(driver("d", "x", -1))}},
		"another id":  {one(driver("d", "w", 5), driver("e", "f", 1)), &info{"x", nil, 5}, [][]storage.CSINodeDriver{one(driver("e", "f", 1)), one(driver("d", "x", 5), driver("e", "f", 1))}},
		"another key": {one(driver("d", "x", 5, "zone")), &info{"x", zone, 5}, [][]storage.CSINodeDriver{{}, one(driver("d", "x", 5, "region", "zone"))}},
		"removed":     {one(driver("d", "x", 5), driver("e", "f", 1)), nil, [][]storage.CSINodeDriver{one(driver("e", "f", 1))}},
		"not there":   {one(driver("e", "f", 1)), nil, nil},
	} {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
		have := newCSINode(node)
		have.Spec.Drivers = test.have
		var got, want []string
		for _, n := range csiNodes(have, "d", test.want) {
			got = append(got, text(t, n.Spec.Drivers))
		}
		for _, drivers := range test.next {
			want = append(want, text(t, drivers))
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		delete(have.Annotations, v1.MigratedPluginsAnnotationKey)
		if steps := csiNodes(have, "d", test.want); len(steps) == 0 || !strings.HasPrefix(steps[len(steps)-1].Annotations[v1.MigratedPluginsAnnotationKey], "kubernetes.io/aws-ebs,") {
			t.Errorf("%s: the annotation about migrated kinds is not restored", name)
		}
	}
}

func text(t *testing.T, v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
