package docker

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// accounts are the users and groups of an image: its /etc/passwd and /etc/group as far as they can be read (passwd(5), group(5)).
type accounts struct {
	users  []account
	groups []group
}

type account struct {
	name     string
	uid, gid int64
}

type group struct {
	name    string
	gid     int64
	members []string
}

func parseAccounts(passwd, groups string) *accounts {
	out := &accounts{}
	for line := range strings.Lines(passwd) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 {
			continue
		}
		uid, err1 := strconv.ParseInt(f[2], 10, 32)
		gid, err2 := strconv.ParseInt(f[3], 10, 32)
		if err1 == nil && err2 == nil {
			out.users = append(out.users, account{f[0], uid, gid})
		}
	}
	for line := range strings.Lines(groups) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 {
			continue
		}
		if gid, err := strconv.ParseInt(f[2], 10, 32); err == nil {
			out.groups = append(out.groups, group{f[0], gid, strings.Split(f[3], ",")})
		}
	}
	return out
}

// identify says as whom the engine runs what is given to it as "user[:group]", either by name or number, "" being root; Groups are
// those that the image gives to the user, without the primary one. ok false: the image has no such user or group, which the engine
// will say at the start.
func (a *accounts) identify(spec string) (id v1.LinuxContainerUser, ok bool) {
	user, groupName, _ := strings.Cut(spec, ":")
	if user == "" {
		user = "0"
	}
	number, err := strconv.ParseInt(user, 10, 32)
	id.UID = number
	known := slices.IndexFunc(a.users, func(u account) bool { return u.name == user || err == nil && u.uid == number })
	switch {
	case known >= 0:
		id.UID, id.GID = a.users[known].uid, a.users[known].gid
		for _, g := range a.groups {
			if slices.Contains(g.members, a.users[known].name) {
				id.SupplementalGroups = append(id.SupplementalGroups, g.gid)
			}
		}
	case err != nil:
		return id, false
	}
	if groupName == "" {
		return id, true
	}
	number, err = strconv.ParseInt(groupName, 10, 32)
	id.GID = number
	if i := slices.IndexFunc(a.groups, func(g group) bool { return g.name == groupName || err == nil && g.gid == number }); i >= 0 {
		id.GID = a.groups[i].gid
	} else if err != nil {
		return id, false
	}
	return id, true
}

// strictGroups says that a pod's containers get no groups but those of its spec (supplementalGroupsPolicy, KEP-3619).
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

// chosenUser is what the engine is told about the user of a container, and as whom that makes it run; who is nil where it is not known.
type chosenUser struct {
	user   string // for the engine; "" leaves it to the image
	groups []int64
	who    *v1.LinuxContainerUser
}

// chooseUser decides the user and groups of a container. An engine that is given a group beside the user passes over the image's group
// file, and one that is not reads it: where the policy wants the other, both are given as numbers.
func chooseUser(p *v1.Pod, c *v1.Container, imageUser string, known *accounts) chosenUser {
	out := chosenUser{user: user(p, c, imageUser), groups: specGroups(p)}
	if known == nil {
		return out
	}
	spec := out.user
	if spec == "" {
		spec = imageUser
	}
	id, ok := known.identify(spec)
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
	id.SupplementalGroups = union([]int64{id.GID}, id.SupplementalGroups) // as the kernel has it, and CRI's runtimes show it
	out.who = &id
	return out
}

// needsAccounts says that chooseUser cannot do what the spec asks for without the image's accounts.
func needsAccounts(p *v1.Pod, c *v1.Container, imageUser string) bool {
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
