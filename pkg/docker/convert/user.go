package convert

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/accounts"
)

// strictGroups says that a pod's containers get only the groups of its spec (supplementalGroupsPolicy, KEP-3619).
func strictGroups(p *v1.Pod) bool {
	sc := p.Spec.SecurityContext
	return sc != nil && sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict
}

// specGroups are the groups that the pod's spec adds.
func specGroups(p *v1.Pod) []int64 {
	sc := p.Spec.SecurityContext
	if sc == nil {
		return nil
	}
	var out []int64
	if sc.FSGroup != nil {
		out = append(out, *sc.FSGroup)
	}
	for _, gid := range sc.SupplementalGroups {
		if !slices.Contains(out, gid) {
			out = append(out, gid)
		}
	}
	return out
}

// chosenUser is the user of a container: as requested from the engine, and as it takes effect. who is nil if that is unknown.
type chosenUser struct {
	user   string // for the engine; "" leaves it to the image
	groups []int64
	who    *v1.LinuxContainerUser
}

// chooseUser decides the user and groups of a container. If the engine gets a group beside the user, it ignores the image's group file, otherwise it
// reads it. Where the policy wants the opposite, both are given as numbers.
func chooseUser(p *v1.Pod, c *v1.Container, imageUser string, known *accounts.Accounts) chosenUser {
	out := chosenUser{user: user(p, c, imageUser), groups: specGroups(p)}
	if known == nil {
		return out
	}
	spec := out.user
	if spec == "" {
		spec = imageUser
	}
	id, ok := known.Identify(spec)
	if !ok {
		return out
	}
	_, _, named := strings.Cut(spec, ":")
	switch {
	case strictGroups(p):
		out.user = fmt.Sprintf("%d:%d", id.UID, id.GID)
		id.SupplementalGroups = out.groups
	case named && len(id.SupplementalGroups) > 0:
		out.user = fmt.Sprintf("%d:%d", id.UID, id.GID)
		id.SupplementalGroups = union(id.SupplementalGroups, out.groups)
		out.groups = id.SupplementalGroups
	default:
		id.SupplementalGroups = union(id.SupplementalGroups, out.groups)
	}
	id.SupplementalGroups = union([]int64{id.GID}, id.SupplementalGroups) // as in the kernel, and as CRI runtimes report it
	out.who = &id
	return out
}

// NeedsAccounts says that chooseUser needs the image's accounts for this spec.
func NeedsAccounts(p *v1.Pod, c *v1.Container, imageUser string) bool {
	return strictGroups(p) || strings.Contains(user(p, c, imageUser), ":")
}

func union(a, b []int64) []int64 {
	out := slices.Clone(a)
	for _, n := range b {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}
