package kinds_test

import (
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// TestEverySource gives a pod each kind of volume that the API has. What this agent has not must be refused by its name.
func TestEverySource(t *testing.T) {
	have := map[string]bool{"hostPath": true, "emptyDir": true, "secret": true, "configMap": true, "projected": true, "downwardAPI": true,
		"persistentVolumeClaim": true, "ephemeral": true, "image": true, "nfs": true}
	refused := 0
	for field := range reflect.TypeFor[v1.VolumeSource]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if have[name] {
			continue
		}
		var source v1.VolumeSource
		reflect.ValueOf(&source).Elem().FieldByIndex(field.Index).Set(reflect.New(field.Type.Elem()))
		_, err := volumetest.New(t, volumetest.Linux()).Prepare(t.Context(), volumetest.Pod(volumetest.Vol("v", source)))
		if err == nil || !strings.Contains(err.Error(), "volume kind "+name+" is not supported by this node agent") {
			t.Errorf("%s: %v", name, err)
		}
		refused++
	}
	if refused < 15 {
		t.Errorf("%d kinds refused: the walk is broken", refused)
	}
}
