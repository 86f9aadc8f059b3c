// Package accounts reads the users and groups of an image as an engine does, to find the user that a container runs as. It does no I/O.
package accounts

import (
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Accounts are the users and groups of an image: the readable lines of its /etc/passwd and /etc/group (passwd(5), group(5)).
type Accounts struct {
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

// Parse reads the contents of both files; either may be empty. It skips malformed lines.
func Parse(passwd, groups string) *Accounts {
	out := &Accounts{}
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

// Identify returns the user that the engine runs a container as, given "user[:group]" by name or number; "" is root. The id's supplementary groups
// are those that the image gives the user, without the primary one. ok is false if the image has no such user or group; the engine then refuses to
// start the container.
func (a *Accounts) Identify(spec string) (id v1.LinuxContainerUser, ok bool) {
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
