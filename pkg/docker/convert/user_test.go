package convert

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/accounts"
	"github.com/winkube/winkube/pkg/docker/identity"
)

const testPasswd = `root:x:0:0:root:/root:/bin/sh
# a comment

broken:x
app:x:1000:1000::/home/app:/bin/sh
big:x:99999999999:1::/:/bin/sh
`

const testGroup = `root:x:0:
adm:x:4:root,app
app:x:1000:
extra:x:50000:app
`

func TestChooseUser(t *testing.T) {
	known := accounts.Parse(testPasswd, testGroup)
	strict := ptr(v1.SupplementalGroupsPolicyStrict)
	for _, test := range []struct {
		name  string
		pod   v1.PodSecurityContext
		image string
		known *accounts.Accounts
		want  string // user for the engine, groups for it, status
	}{
		{"nothing", v1.PodSecurityContext{}, "", known, " [] 0:0:0,4"},
		{"the image's user", v1.PodSecurityContext{SupplementalGroups: []int64{60000}}, "app", known, " [60000] 1000:1000:1000,4,50000,60000"},
		{"merge: the engine does it", v1.PodSecurityContext{RunAsUser: ptr[int64](1000), FSGroup: ptr[int64](5)}, "", known, "1000 [5] 1000:1000:1000,4,50000,5"},
		{"merge: a group keeps the engine from it", v1.PodSecurityContext{RunAsUser: ptr[int64](1000), RunAsGroup: ptr[int64](7), SupplementalGroups: []int64{60000, 4}},
			"", known, "1000:7 [4 50000 60000] 1000:7:7,4,50000,60000"},
		{"merge: a group of the image", v1.PodSecurityContext{}, "app:extra", known, "1000:50000 [4 50000] 1000:50000:50000,4"},
		{"nothing to merge", v1.PodSecurityContext{RunAsUser: ptr[int64](77), RunAsGroup: ptr[int64](7)}, "", known, "77:7 [] 77:7:7"},
		{"strict", v1.PodSecurityContext{SupplementalGroupsPolicy: strict, SupplementalGroups: []int64{60000}}, "app", known, "1000:1000 [60000] 1000:1000:1000,60000"},
		{"strict root", v1.PodSecurityContext{SupplementalGroupsPolicy: strict}, "", known, "0:0 [] 0:0:0"},
		{"strict with a group", v1.PodSecurityContext{SupplementalGroupsPolicy: strict, RunAsUser: ptr[int64](1000), RunAsGroup: ptr[int64](7)}, "", known, "1000:7 [] 1000:7:7"},
		{"no such user", v1.PodSecurityContext{}, "ghost", known, " [] ?"},
		{"not known", v1.PodSecurityContext{RunAsUser: ptr[int64](1000), RunAsGroup: ptr[int64](7)}, "", nil, "1000:7 [] ?"},
	} {
		p := basePod()
		p.Spec.SecurityContext = &test.pod
		chosen := chooseUser(p, &p.Spec.Containers[0], test.image, test.known)
		who := "?"
		if chosen.who != nil {
			who = identity.FormatUser(chosen.who)
			if back := identity.ParseUser(who); back == nil || identity.FormatUser(back) != who {
				t.Errorf("%s: %s is read as %+v", test.name, who, back)
			}
		}
		if got := fmt.Sprint(chosen.user, " ", chosen.groups, " ", who); got != test.want {
			t.Errorf("%s:\ngot  %s\nwant %s", test.name, got, test.want)
		}
	}
	if got := identity.ParseUser(""); got != nil {
		t.Errorf("no label: %+v", got)
	}
}
