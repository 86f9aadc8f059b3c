package moby

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/winkube/winkube/test/windows/rig"
)

// Image is an image of one layer without files, which all images share.
type Image struct {
	Name       string // NAME:TAG
	Entrypoint []string
	Cmd        []string
}

// The layer, in the on-disk format of moby's windowsfilter. As the only one it is also the chain.
const (
	diff  = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	layer = "2222222222222222222222222222222222222222222222222222222222222222"
)

// Seed writes images into the store of a daemon that has none, as a pull leaves them (moby layer/filestore.go, image/fs.go, reference/store.go). A pull
// cannot run here: unpacking a Windows layer needs backup rights and NTFS streams, which Wine lacks.
func Seed(p *rig.Prefix, images ...Image) error {
	const store, filter = DataRoot + `\image\windowsfilter\`, DataRoot + `\windowsfilter\` + layer
	chain := store + `layerdb\sha256\` + strings.TrimPrefix(diff, "sha256:")
	files := map[string]string{chain + `\diff`: diff, chain + `\size`: "0", chain + `\cache-id`: layer, filter + `\layerchain.json`: "null"}
	repositories := map[string]map[string]string{}
	for _, one := range images {
		config, id, err := one.config(p.Build)
		if err != nil {
			return err
		}
		files[store+`imagedb\content\sha256\`+id] = config
		repository := one.Name[:strings.LastIndexByte(one.Name, ':')]
		if repositories[repository] == nil {
			repositories[repository] = map[string]string{}
		}
		repositories[repository][one.Name] = "sha256:" + id
	}
	text, err := json.Marshal(map[string]any{"Repositories": repositories})
	if err != nil {
		return err
	}
	files[store+`repositories.json`] = string(text)
	dirs := map[string]bool{DataRoot: true, filter: true, filter + `\Files`: true, filter + `\UtilityVM`: true, store + "layerdb": true}
	for path := range files {
		for at := len(path) - 1; at > len(DataRoot); at-- {
			if path[at] == '\\' {
				dirs[path[:at]] = true
			}
		}
	}
	for dir := range dirs {
		if err := p.Own(p.Path(dir)); err != nil {
			return err
		}
	}
	for path, text := range files {
		if err := os.WriteFile(filepath.Clean(p.Path(path)), []byte(text), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// config returns the image's configuration and its ID without "sha256:".
func (i Image) config(build int) (text, id string, err error) {
	const created = "2024-01-01T00:00:00Z"
	data, err := json.Marshal(map[string]any{"architecture": "amd64", "os": "windows", "os.version": fmt.Sprintf("10.0.%d.1", build), "created": created,
		"config":  map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Cmd},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{diff}},
		"history": []any{map[string]string{"created": created, "comment": i.Name}}}) // equal images have one ID
	if err != nil {
		return "", "", err
	}
	sum := sha256.Sum256(data)
	return string(data), hex.EncodeToString(sum[:]), nil
}
