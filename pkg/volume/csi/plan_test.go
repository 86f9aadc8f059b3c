package csi

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

func joined(steps []step, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	words := make([]string, len(steps))
	for i, s := range steps {
		words[i] = string(s)
	}
	return strings.Join(words, ", ")
}

func TestBringUp(t *testing.T) {
	persistent, inline := described{mode: v1.ReadWriteOnce}, described{ephemeral: true, mode: v1.ReadWriteOnce}
	device, alone := described{block: true, mode: v1.ReadWriteOnce}, described{mode: v1.ReadWriteOncePod}
	stages, again := can{stage: true}, rules{republish: true}
	for _, test := range []struct {
		name string
		d    described
		r    rules
		c    can
		s    seen
		want string
	}{
		{"the first pod", persistent, rules{}, stages, seen{}, "record pod, record volume, NodeStage, NodePublish, mark"},
		{"the second pod", persistent, rules{}, stages, seen{staged: true, recorded: true, others: []string{"a"}}, "record pod, record volume, NodePublish, mark"},
		{"after a kill of the agent, or of its volume's mount", persistent, rules{}, stages, seen{own: true, recorded: true}, "record pod, record volume, NodeStage, NodePublish, mark"},
		{"with an fsGroup", persistent, rules{}, can{stage: true, group: true}, seen{staged: true}, "record pod, record volume, NodePublish, fsGroup, mark"},
		{"of a driver that does not stage", persistent, rules{}, can{}, seen{}, "record pod, NodePublish, mark"},
		{"inline, of a driver that stages others", inline, rules{}, stages, seen{}, "record pod, NodePublish, mark"},
		{"a device", device, rules{}, stages, seen{}, "record volume, record pod, NodeStage, NodePublish, mark"},
		{"a device of a driver that does not stage", device, rules{}, can{}, seen{}, "record volume, record pod, NodePublish, mark"},
		{"ready", persistent, rules{}, stages, seen{ready: true, staged: true}, ""},
		{"ready, published again", persistent, again, stages, seen{ready: true, own: true}, "NodePublish"},
		{"not ready, published once", persistent, again, stages, seen{staged: true}, "record pod, record volume, NodePublish, mark"},
		{"the only pod of one", alone, rules{}, stages, seen{staged: true}, "record pod, record volume, NodePublish, mark"},
		{"one too many", alone, rules{}, stages, seen{staged: true, others: []string{"a"}}, "error: volume uses the ReadWriteOncePod access mode and is already in use by another pod"},
	} {
		if got := joined(bringUp(test.d, test.r, test.c, test.s)); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", test.name, got, test.want)
		}
	}
}

func TestTakeDown(t *testing.T) {
	for _, test := range []struct {
		name string
		s    seen
		want string
	}{
		{"the last pod", seen{recorded: true}, "NodeUnpublish, unmount, NodeUnstage, unmount staged, forget volume, forget pod"},
		{"others remain", seen{recorded: true, others: []string{"a"}}, "NodeUnpublish, unmount, forget pod"},
		{"never staged", seen{}, "NodeUnpublish, unmount, forget pod"},
	} {
		if got := joined(allOf(test.s), nil); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", test.name, got, test.want)
		}
	}
}

// TestOrderSurvivesKills: wherever the agent is killed in bringUp, takeDown undoes its work from the records alone; wherever it is killed in
// takeDown, the next takeDown finds everything that is left.
func TestOrderSurvivesKills(t *testing.T) {
	undoes := map[step]step{stage: unstage, publish: unpublish}
	for _, d := range []described{{mode: v1.ReadWriteOnce}, {ephemeral: true}, {block: true}} {
		for _, c := range []can{{}, {stage: true}} {
			steps, err := bringUp(d, rules{}, c, seen{})
			if err != nil {
				t.Fatal(err)
			}
			for n := range len(steps) + 1 {
				done := steps[:n]
				s := seen{recorded: slices.Contains(done, recordVolume)}
				undo := takeDownOrphan()
				if slices.Contains(done, recordPod) {
					undo = allOf(s)
				} else if !s.recorded {
					undo = nil
				}
				for call, by := range undoes {
					if slices.Contains(done, call) && !slices.Contains(undo, by) {
						t.Errorf("killed after %q: %s is missing from %q", done, by, undo)
					}
				}
			}
		}
	}
	last := allOf(seen{recorded: true})
	if slices.Index(last, forgetVolume) < slices.Index(last, unstage) || last[len(last)-1] != forgetPod || slices.Index(last, unstage) < slices.Index(last, unpublish) {
		t.Errorf("records go before what they lead to: %q", last)
	}
}

func TestAfterFailure(t *testing.T) {
	fs, device := described{}, described{block: true}
	for _, test := range []struct {
		name           string
		d              described
		c              can
		failed         step
		final, mounted bool
		before         seen
		want           string
	}{
		{"NodeStage is refused", fs, can{stage: true}, stage, true, false, seen{}, "forget volume, forget pod"},
		{"NodeStage may go on", fs, can{stage: true}, stage, false, false, seen{}, ""},
		{"NodeStage was done before", fs, can{stage: true}, stage, true, false, seen{recorded: true}, ""},
		{"NodeStage has mounted nevertheless", fs, can{stage: true}, stage, true, true, seen{}, ""},
		{"another pod uses it", fs, can{stage: true}, stage, true, false, seen{others: []string{"a"}}, ""},
		{"NodePublish is refused after NodeStage", fs, can{stage: true}, publish, true, false, seen{}, ""},
		{"NodePublish alone is refused", fs, can{}, publish, true, false, seen{}, "forget pod"},
		{"NodePublish alone of a device", device, can{}, publish, true, false, seen{}, "forget volume, forget pod"},
		{"NodePublish may have been done in a former life", fs, can{}, publish, true, false, seen{own: true}, ""},
		{"NodePublish again", fs, can{}, publish, true, false, seen{ready: true}, ""},
		{"fsGroup", fs, can{}, giveGroup, true, false, seen{}, ""},
	} {
		if got := joined(afterFailure(test.d, test.c, test.failed, test.final, test.mounted, test.before), nil); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestRules(t *testing.T) {
	both := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
	persistent, inline := described{key: key{driver: "d"}}, described{key: key{driver: "d"}, ephemeral: true}
	for _, test := range []struct {
		name   string
		d      described
		object *storagev1.CSIDriver
		want   string
	}{
		{"no object", persistent, nil, "attach ReadWriteOnceWithFSType"},
		{"no object, inline", inline, nil, `error: kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode "Ephemeral" not supported by driver d (no CSIDriver object)`},
		{"an empty object", persistent, &storagev1.CSIDriver{}, "attach ReadWriteOnceWithFSType"},
		{"inline, persistent alone", inline, &storagev1.CSIDriver{}, `error: kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode "Ephemeral" not supported by driver d (only supports ["Persistent"])`},
		{"inline is never attached", inline, &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{VolumeLifecycleModes: both, AttachRequired: new(true), PodInfoOnMount: new(true)}}, "info ReadWriteOnceWithFSType"},
		{"everything", persistent, &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{AttachRequired: new(false), RequiresRepublish: new(true), FSGroupPolicy: new(storagev1.FileFSGroupPolicy),
			TokenRequests: []storagev1.TokenRequest{{}}, ServiceAccountTokenInSecrets: new(true)}}, "again tokens in secrets File"},
	} {
		r, err := rulesFor(test.d, test.object)
		got := ""
		if r.attach {
			got += "attach "
		}
		if r.podInfo {
			got += "info "
		}
		if r.republish {
			got += "again "
		}
		if len(r.tokens) > 0 {
			got += "tokens "
		}
		if r.tokensInSecrets {
			got += "in secrets "
		}
		if got += string(r.group); err != nil {
			got = "error: " + err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %s\nwant %s", test.name, got, test.want)
		}
	}
}

func TestChangesGroup(t *testing.T) {
	once, many := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	for _, test := range []struct {
		d      described
		policy storagev1.FSGroupPolicy
		want   bool
	}{
		{described{fsType: "ext4", modes: once}, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, true},
		{described{fsType: "ext4", modes: []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany, v1.ReadWriteOncePod}}, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, true},
		{described{modes: once}, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, false},
		{described{fsType: "nfs", modes: many}, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, false},
		{described{fsType: "ext4"}, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, false},
		{described{fsType: "ext4", ephemeral: true}, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, true},
		{described{modes: many}, storagev1.FileFSGroupPolicy, true},
		{described{modes: many, readOnly: true}, storagev1.FileFSGroupPolicy, false},
		{described{block: true, modes: once}, storagev1.FileFSGroupPolicy, false},
		{described{fsType: "ext4", modes: once}, storagev1.NoneFSGroupPolicy, false},
	} {
		if got := changesGroup(test.d, test.policy); got != test.want {
			t.Errorf("%+v, %s: %v", test.d, test.policy, got)
		}
	}
}

// TestAccessModes: as upstream's kubelet, which has the same drivers.
func TestAccessModes(t *testing.T) {
	got := ""
	for _, mode := range []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod, "other"} {
		got += fmt.Sprintf("%s: %s, %s\n", mode, accessMode(mode, false), accessMode(mode, true))
	}
	const want = `ReadWriteOnce: SINGLE_NODE_WRITER, SINGLE_NODE_MULTI_WRITER
ReadOnlyMany: MULTI_NODE_READER_ONLY, MULTI_NODE_READER_ONLY
ReadWriteMany: MULTI_NODE_MULTI_WRITER, MULTI_NODE_MULTI_WRITER
ReadWriteOncePod: SINGLE_NODE_WRITER, SINGLE_NODE_SINGLE_WRITER
other: UNKNOWN, UNKNOWN
`
	if got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}
