package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// file is a file in an archive. Its name is relative and uses slashes.
type file struct {
	name string
	mode fs.FileMode
	data []byte
}

// within moves files below a directory.
func within(dir string, files []file) []file {
	out := slices.Clone(files)
	for i := range out {
		out[i].name = path.Join(dir, out[i].name)
	}
	return out
}

// renamed moves the files below from to below to, and drops all others.
func renamed(files []file, from, to string) (out []file) {
	for _, f := range files {
		if rest, ok := strings.CutPrefix(f.name, from+"/"); ok {
			f.name = path.Join(to, rest)
			out = append(out, f)
		}
	}
	return out
}

// sorted returns files by name. It returns an error if two have the same name, or a name leaves the archive.
func sorted(files []file) ([]file, error) {
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	for i, f := range files {
		if !fs.ValidPath(f.name) || f.name == "." {
			return nil, fmt.Errorf("%q is no name for a file in an archive", f.name)
		}
		if i > 0 && files[i-1].name == f.name {
			return nil, fmt.Errorf("%s is in the archive twice", f.name)
		}
	}
	return files, nil
}

// directories returns the parent directories of sorted files, outer ones first.
func directories(files []file) (dirs []string) {
	seen := map[string]bool{".": true}
	for _, f := range files {
		for dir := path.Dir(f.name); !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// writeTar writes a tar archive, compressed with gzip.
func writeTar(w io.Writer, files []file, when time.Time) error {
	compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := writePlainTar(compressed, files, when); err != nil {
		return err
	}
	return compressed.Close()
}

// writePlainTar writes a tar archive of root's files, with their directories. The data of a symbolic link is where it leads.
func writePlainTar(w io.Writer, files []file, when time.Time) error {
	files, err := sorted(files)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	header := tar.Header{Uname: "root", Gname: "root", ModTime: when, Format: tar.FormatUSTAR}
	for _, dir := range directories(files) {
		one := header
		one.Typeflag, one.Name, one.Mode = tar.TypeDir, dir+"/", 0o755
		if err := archive.WriteHeader(&one); err != nil {
			return err
		}
	}
	for _, f := range files {
		one := header
		one.Typeflag, one.Name, one.Mode, one.Size = tar.TypeReg, f.name, int64(f.mode.Perm()), int64(len(f.data))
		if f.mode&fs.ModeSymlink != 0 {
			one.Typeflag, one.Linkname, one.Mode, one.Size, f.data = tar.TypeSymlink, string(f.data), 0o777, 0, nil
		}
		if err := archive.WriteHeader(&one); err != nil {
			return err
		}
		if _, err := archive.Write(f.data); err != nil {
			return err
		}
	}
	return archive.Close()
}

// writeZip writes a zip archive.
func writeZip(w io.Writer, files []file, when time.Time) error {
	files, err := sorted(files)
	if err != nil {
		return err
	}
	archive := zip.NewWriter(w)
	for _, f := range files {
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: when.UTC()}
		header.SetMode(f.mode)
		entry, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := entry.Write(f.data); err != nil {
			return err
		}
	}
	return archive.Close()
}

// packed compresses data with gzip, for manual pages and change logs in packages.
func packed(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}
