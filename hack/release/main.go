// Command release writes what users install to _output/release: archives, packages and images per system and processor, with checksums, a bill of
// materials, a provenance statement and the licences of all modules.
//
//	git commit, hack/VERSION --> programs --> trees of files --> archives, packages, images --> SHA256SUMS
//
// Two runs on one commit write the same bytes: times come from the commit, archives are sorted, and owners are fixed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// run makes a release according to args.
func run(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("release", flag.ContinueOnError)
	dir := fs.String("out", filepath.Join("_output", "release"), "directory of the artefacts; what is in it is replaced")
	dirty := fs.Bool("dirty", false, "accept a working tree with changes; such a release cannot be repeated")
	var part part
	fs.StringVar(&part.kind, "only", "", "for tests: make one `kind` of artefact, "+strings.Join(kinds, ", ")+", for amd64 or this machine's processor, from the programs in -programs")
	fs.StringVar(&part.programs, "programs", "", "for tests, with -only: `directory` with both programs, which are not built")
	fs.StringVar(&part.version, "version", "", "for tests, with -only: `version` in place of hack/VERSION's")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("argument %q: want only flags, which -h lists", fs.Arg(0))
	}
	src, err := readSource(ctx, ".", os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	if src.Dirty && !*dirty {
		return errors.New("the working tree has changes: commit them, or try a release with: go run ./hack/release -dirty")
	}
	if err := part.check(src); err != nil {
		return err
	}
	made, err := replaceable(*dir)
	if err != nil {
		return err
	}
	if err := replace(*dir, made, func(fresh string) error { return src.make(ctx, part, fresh, out) }); err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(*dir, sumsName))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(sums)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		info, err := os.Stat(filepath.Join(*dir, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-44s %6.1f MB  %s\n", name, float64(info.Size())/1e6, sum)
	}
	fmt.Fprintf(out, "release: %s of commit %.12s is in %s\n", src.Version, src.Commit, *dir)
	return nil
}

// replace calls makeIn with a new directory beside dir, then moves that to dir. After an error dir is unchanged.
func replace(dir string, made bool, makeIn func(fresh string) error) (err error) {
	parent, base := filepath.Split(filepath.Clean(dir))
	if parent == "" {
		parent = "."
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(parent, base+".new-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(fresh))
		}
	}()
	if err := os.Chmod(fresh, 0o755); err != nil { // MkdirTemp makes it private to the user
		return err
	}
	if err := makeIn(fresh); err != nil {
		return err
	}
	if made {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return os.Rename(fresh, dir)
}

// replaceable reports whether dir holds an earlier release, which may be replaced. It returns an error if dir holds
// other files.
func replaceable(dir string) (made bool, err error) {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case len(entries) == 0:
		return true, nil
	}
	if _, err := os.Stat(filepath.Join(dir, sumsName)); err != nil {
		return false, fmt.Errorf("-out=%s: there are other files in it; want an empty directory, or that of an earlier release", dir)
	}
	return true, nil
}
