package limits

// dynamicPorts are those of Windows from 49152 on (netsh int ipv4 show dynamicport tcp).
const dynamicPorts = 16384

// SourcePorts is how many source ports the system may choose from; 0: unknown.
func SourcePorts() int { return dynamicPorts }

// HostCapacity is what Windows gives a process. Its handles have no limit that matters here. A connection of Go's has a source port that no other has,
// whatever its endpoint, since ConnectEx wants a socket that is bound.
func HostCapacity() Capacity {
	return Capacity{Files: mostFiles, Ports: dynamicPorts, OnePool: true}
}
