package limits

// dynamicPorts is the size of Windows' default range, from 49152 on (netsh int ipv4 show dynamicport tcp).
const dynamicPorts = 16384

// SourcePorts returns how many source ports the system may choose from; 0: unknown.
func SourcePorts() int { return dynamicPorts }

// HostCapacity returns the limits of a process on Windows. Its number of handles has no relevant limit. A connection of
// Go has a unique source port, whatever its endpoint, because ConnectEx requires a bound socket.
func HostCapacity() Capacity {
	return Capacity{Files: mostFiles, Ports: dynamicPorts, OnePool: true}
}
