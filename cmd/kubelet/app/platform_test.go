package app

import (
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/host"
)

func TestCheckBuild(t *testing.T) {
	for build, refused := range map[int]bool{9600: true, 10240: true, 14393: false, 17763: false, 26100: false, 99999: false} {
		err := checkBuild(host.Facts{OS: "windows", OSImage: "Windows Server 2012 R2", WindowsBuild: build})
		if (err != nil) != refused || err != nil && !strings.Contains(err.Error(), "want Windows Server 2016 (build 14393) or later") {
			t.Errorf("%d: %v", build, err)
		}
	}
	if err := checkBuild(host.Facts{OS: "linux"}); err != nil {
		t.Error(err)
	}
}
