package outsiders

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// image is the containers' image: one layer without files, in the on-disk format of moby's windowsfilter.
const image = "registry.test/base:1"

// seed writes the image into the daemon's directory, as a pull leaves it (moby layer/filestore.go, image/fs.go, reference/store.go). A pull cannot
// run here: unpacking a Windows layer needs backup rights and NTFS streams, which Wine lacks.
func (d *daemon) seed() error {
	const diff = "sha256:1111111111111111111111111111111111111111111111111111111111111111" // with a single layer it is also the chain ID
	config := fmt.Sprintf(`{"architecture":"amd64","os":"windows","os.version":"10.0.%d.1","config":{"Cmd":["cmd"]},"created":"2024-01-01T00:00:00Z","rootfs":{"type":"layers","diff_ids":[%q]},"history":[{"created":"2024-01-01T00:00:00Z"}]}`,
		d.prefix.Build, diff)
	sum := sha256.Sum256([]byte(config))
	id := hex.EncodeToString(sum[:])
	const store, layer = `C:\docker\image\windowsfilter\`, "2222222222222222222222222222222222222222222222222222222222222222"
	chain := store + `layerdb\sha256\` + diff[len("sha256:"):]
	files := map[string]string{
		chain + `\diff`:                        diff,
		chain + `\size`:                        "0",
		chain + `\cache-id`:                    layer,
		store + `imagedb\content\sha256\` + id: config,
		store + `repositories.json`:            fmt.Sprintf(`{"Repositories":{"registry.test/base":{%q:"sha256:%s"}}}`, image, id),
		`C:\docker\windowsfilter\` + layer + `\layerchain.json`: "null",
	}
	dirs := map[string]bool{`C:\docker`: true, `C:\docker\windowsfilter\` + layer + `\Files`: true, `C:\docker\windowsfilter\` + layer + `\UtilityVM`: true}
	for path := range files {
		for at := len(path) - 1; at > len(`C:\docker`); at-- {
			if path[at] == '\\' {
				dirs[path[:at]] = true
			}
		}
	}
	dirs[`C:\docker\windowsfilter\`+layer], dirs[store+"layerdb"] = true, true
	for dir := range dirs {
		if err := d.prefix.Own(d.prefix.Path(dir)); err != nil {
			return err
		}
	}
	for path, text := range files {
		if err := os.WriteFile(filepath.Clean(d.prefix.Path(path)), []byte(text), 0o666); err != nil {
			return err
		}
	}
	return nil
}
