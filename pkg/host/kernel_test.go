package host

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestCheckKernelDefaults(t *testing.T) {
	sys := fstest.MapFS{}
	set := func(path, value string) { sys[path] = &fstest.MapFile{Data: []byte(value + "\n")} }
	set("vm/overcommit_memory", "1")
	set("vm/panic_on_oom", "0")
	set("kernel/panic", "10")
	set("kernel/panic_on_oops", "1")
	set("kernel/keys/root_maxkeys", "1000000")
	if err := CheckKernelDefaults(sys); err == nil || !strings.Contains(err.Error(), "cannot read sysctl kernel.keys.root_maxbytes") {
		t.Errorf("an unreadable sysctl: %v", err)
	}
	set("kernel/keys/root_maxbytes", "25000000")
	if err := CheckKernelDefaults(sys); err != nil {
		t.Error(err)
	}
	set("vm/overcommit_memory", "0")
	set("kernel/panic", "0")
	const want = "the kernel has vm.overcommit_memory=0, want 1; kernel.panic=0, want 10; write the wanted values"
	if err := CheckKernelDefaults(sys); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}
