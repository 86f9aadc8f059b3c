package app

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/winkube/winkube/pkg/migrate"
)

// TestMigrate: each archive has the command lines of other programs, one word a line, and files; want is what doctor --migrate prints.
func TestMigrate(t *testing.T) {
	files, err := filepath.Glob("testdata/migrate/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			var programs []migrate.Program
			for _, f := range archive.Files {
				text := strings.ReplaceAll(string(f.Data), "DIR", dir)
				switch f.Name {
				case "want":
				case "kubelet", "cri-dockerd":
					programs = append(programs, migrate.Program{Name: f.Name, From: "process 7", Args: strings.Split(strings.TrimSpace(text), "\n")})
				default:
					if err := os.WriteFile(filepath.Join(dir, f.Name), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			m, err := migrate.Translate(programs, ours("linux"))
			if err != nil {
				t.Fatal(err)
			}
			short := strings.NewReplacer(dir+"/", "DIR/", dir+`\`, "DIR/").Replace
			for i := range m.Sources {
				m.Sources[i] = short(m.Sources[i])
			}
			for i := range m.Left {
				m.Left[i].Where = short(m.Left[i].Where)
			}
			got, err := m.Text(nil)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == "want" })
			if *update {
				archive.Files[i].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want := string(archive.Files[i].Data); got != want {
				t.Errorf("got\n%s", got)
			}
		})
	}
}

// TestMigrateCommand: flags after -- are translated, and a refused one is an error that counts it.
func TestMigrateCommand(t *testing.T) {
	for line, want := range map[string]string{
		"--migrate -- --api-servers=https://10.0.0.1:6443 --v=3":   "",
		"--migrate -- --cpu-manager-policy=static --runonce --v=3": "settings that this kubelet refuses: 2; they are left out, with what would be right",
		"stray": `unknown command "stray"`,
	} {
		var out bytes.Buffer
		command := newHostDoctorCommand(&out)
		command.SilenceUsage, command.SilenceErrors = true, true
		command.SetArgs(strings.Fields(line))
		err := command.Execute()
		if made := strings.Contains(out.String(), "\nkind: KubeletConfiguration\n"); made != strings.HasPrefix(line, "--migrate") {
			t.Errorf("%s: prints a configuration: %t\n%s", line, made, out.String())
		}
		if got := ""; err != nil {
			if got = err.Error(); want == "" || !strings.Contains(got, want) {
				t.Errorf("%s: %s", line, got)
			}
		} else if want != "" {
			t.Errorf("%s: no error, want %s", line, want)
		}
	}
}
