package main

import (
	"os"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/windows/rig"
)

func TestOne(t *testing.T) {
	p := rig.Test(t, 20348)
	root, _ := rig.Root()
	for _, pkg := range strings.Fields(os.Getenv("PKGS")) {
		if err := test(t.Context(), p, root, pkg); err != nil {
			t.Error(pkg, err)
		}
	}
}
