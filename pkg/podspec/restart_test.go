package podspec

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestShouldRestart(t *testing.T) {
	rule := func(action v1.ContainerRestartRuleAction, op v1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) v1.ContainerRestartRule {
		return v1.ContainerRestartRule{Action: action, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes}}
	}
	never, onFailure := v1.ContainerRestartPolicyNever, v1.ContainerRestartPolicyOnFailure
	for _, c := range []struct {
		name      string
		pod       v1.RestartPolicy
		container v1.Container
		code      int
		want      bool
	}{
		{"Always", v1.RestartPolicyAlways, v1.Container{}, 0, true},
		{"default", "", v1.Container{}, 0, true},
		{"OnFailure, success", v1.RestartPolicyOnFailure, v1.Container{}, 0, false},
		{"OnFailure, failure", v1.RestartPolicyOnFailure, v1.Container{}, 1, true},
		{"Never", v1.RestartPolicyNever, v1.Container{}, 1, false},
		{"container's own", v1.RestartPolicyNever, v1.Container{RestartPolicy: &onFailure}, 1, true},
		{"container's own, other way", v1.RestartPolicyAlways, v1.Container{RestartPolicy: &never}, 1, false},
		{"rule In", v1.RestartPolicyNever, v1.Container{RestartPolicy: &never, RestartPolicyRules: []v1.ContainerRestartRule{rule("Restart", "In", 42)}}, 42, true},
		{"rule In, other code", v1.RestartPolicyNever, v1.Container{RestartPolicy: &never, RestartPolicyRules: []v1.ContainerRestartRule{rule("Restart", "In", 42)}}, 41, false},
		{"rule NotIn", v1.RestartPolicyNever, v1.Container{RestartPolicy: &never, RestartPolicyRules: []v1.ContainerRestartRule{rule("Restart", "NotIn", 0)}}, 7, true},
	} {
		if got := RestartsAfter(&v1.Pod{Spec: v1.PodSpec{RestartPolicy: c.pod}}, &c.container, c.code); got != c.want {
			t.Errorf("%s: got %t", c.name, got)
		}
	}
}
