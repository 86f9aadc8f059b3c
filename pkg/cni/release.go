package cni

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
)

// ReleaseAll has the plugins take back what they gave to every container in the records of cfg.StateDir, on a host that is a node no more: its containers
// are removed, and no kubelet runs. Plugins are searched where the kubelet had them, then in cfg.BinDirs. It returns how many containers were released; an
// error keeps the records of the others for another try.
func ReleaseAll(ctx context.Context, cfg Config) (released int, err error) {
	records, err := readRecords(recordsIn(cfg.StateDir))
	if err != nil || len(records) == 0 {
		return 0, err
	}
	var dirs []string
	for _, id := range slices.Sorted(maps.Keys(records)) {
		dirs = append(dirs, slices.DeleteFunc(slices.Clone(records[id].BinDirs), func(dir string) bool { return slices.Contains(dirs, dir) })...)
	}
	cfg.BinDirs = append(dirs, cfg.BinDirs...)
	p, err := New(cfg)
	if err != nil {
		return 0, err
	}
	before := len(p.Records())
	err = p.Collect(ctx, func(context.Context, []string) (map[string]bool, error) { return nil, nil })
	if err != nil {
		err = fmt.Errorf("%w; run this again once the plugins are installed and work, or remove %s and the network's records of these containers", err, filepath.Join(recordsIn(cfg.StateDir), "*.json"))
	}
	return before - len(p.Records()), err
}
