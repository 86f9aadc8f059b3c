package kubeclient

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/klog/v2"
)

// pairFiles keeps certificates with their keys in a directory, as upstream's kubelet does, so that a node can change between both:
// NAME-2006-01-02-15-04-05.pem for each, and NAME-current.pem, a symbolic link to the newest.
type pairFiles struct {
	dir, name string
	symlink   func(target, link string) error // os.Symlink
}

// path is the file that is, or links to, the newest certificate and its key.
func (f pairFiles) path() string { return filepath.Join(f.dir, f.name+"-current.pem") }

// dated is the name of a file by the time of its certificate's arrival.
func (f pairFiles) dated(at time.Time) string {
	return filepath.Join(f.dir, f.name+"-"+at.Format("2006-01-02-15-04-05")+".pem")
}

// allDated matches all names that dated returns.
func (f pairFiles) allDated() string { return filepath.Join(f.dir, f.name+"-????-??-??-??-??-??.pem") }

// read returns the newest certificate, nil if there is none.
func (f pairFiles) read() (*tls.Certificate, error) {
	data, err := os.ReadFile(f.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parsePair(data)
}

// write stores a certificate and its key, both PEM, with access for the owner only. File systems without symbolic links, and accounts that
// may not create them, get a file instead of the link; read accepts it.
func (f pairFiles) write(certPEM, keyPEM []byte, now time.Time) (*tls.Certificate, error) {
	data := slices.Concat(certPEM, []byte("\n"), keyPEM)
	cert, err := parsePair(data)
	if err != nil {
		return nil, fmt.Errorf("the API server's certificate does not fit its key: %w", err)
	}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return nil, err
	}
	file := f.dated(now)
	if err := WriteSecret(file, string(data)); err != nil {
		return nil, err
	}
	because := f.link(file)
	if because == nil {
		return cert, nil
	}
	if err := WriteSecret(f.path(), string(data)); err != nil {
		return nil, errors.Join(because, err)
	}
	klog.V(2).InfoS("Cannot link the new certificate; it is a file", "file", f.path(), "reason", because.Error())
	return cert, nil
}

// link replaces the link to the newest certificate. It checks the link: Wine reports success and makes none.
func (f pairFiles) link(file string) error {
	next := filepath.Join(f.dir, f.name+"-updated.pem")
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	target, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	if err := f.symlink(target, next); err != nil {
		return err
	}
	if _, err := os.Stat(next); err != nil {
		return err
	}
	return os.Rename(next, f.path())
}

// parsePair reads a certificate and its key from PEM, with the Leaf set.
func parsePair(data []byte) (*tls.Certificate, error) {
	cert, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, err
	}
	return &cert, nil
}
