// Package nodejoin tests `kubelet node join` and `kubelet node leave` without a host: bare servers of both systems join
// and leave an in-memory cluster.
package nodejoin
