package start

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// TestAhead: before the sandbox has its addresses, inputs are complete but for them, or there are none and nothing is said.
func TestAhead(t *testing.T) {
	before := inSandbox1
	before.Addresses = nil
	env := func(path string) func(*v1.Container) {
		return func(c *v1.Container) {
			c.Env = []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}}}
		}
	}
	for name, test := range map[string]struct {
		pod    *v1.Pod
		change func(*stage)
		none   bool
	}{
		"plain":          {pod: stagePod()},
		"host's address": {pod: stagePod(container(env("status.hostIP")))},
		"address":        {pod: stagePod(container(env("status.podIP"))), none: true},
		"addresses":      {pod: stagePod(container(env("status.podIPs"))), none: true},
		"host network":   {pod: stagePod(func(p *v1.Pod) { p.Spec.HostNetwork = true }), none: true},
		"always pulled":  {pod: stagePod(container(func(c *v1.Container) { c.ImagePullPolicy = v1.PullAlways })), none: true},
		"latest":         {pod: stagePod(container(func(c *v1.Container) { c.Image = "app" })), none: true},
		"not here":       {pod: stagePod(container(func(c *v1.Container) { c.Image = "new:1" })), none: true},
		"no such image":  {pod: stagePod(container(func(c *v1.Container) { c.Image = "A:1" })), none: true},
		"engine away":    {pod: stagePod(), change: func(s *stage) { s.broken["lookup"] = errors.New("no answer") }, none: true},
		"Windows":        {pod: stagePod(), change: func(s *stage) { s.cfg.Platform = pod.Platform{OS: "windows"} }, none: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			if test.change != nil {
				test.change(s)
			}
			r, c := s.resolver(), &test.pod.Spec.Containers[0]
			in, err := r.Ahead(t.Context(), test.pod, c, before)
			if err != nil || (in == nil) != test.none {
				t.Fatalf("%v, %v", in, err)
			}
			if test.none {
				if said := s.told(); said != "" {
					t.Errorf("told %s", said)
				}
				return
			}
			if hosts := s.files["etc-hosts"]; strings.Contains(hosts, "10.1.0.5") {
				t.Errorf("the address is known early:\n%s", hosts)
			}
			if err := r.Addressed(test.pod, inSandbox1); err != nil {
				t.Fatal(err)
			}
			early := s.files["etc-hosts"]
			whole, err := r.Container(t.Context(), test.pod, c, inSandbox1)
			if err != nil || printInputs(whole) != printInputs(in) || s.files["etc-hosts"] != early {
				t.Errorf("%v: got\n%s%s\nContainer gives\n%s%s", err, printInputs(in), early, printInputs(whole), s.files["etc-hosts"])
			}
		})
	}
}
