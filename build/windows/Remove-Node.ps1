<#
.SYNOPSIS
Undoes what Install-Node.ps1 did. Drain the node first: kubectl drain NODE --ignore-daemonsets --delete-emptydir-data

.DESCRIPTION
Logs stay in C:\var\log. Only -RemoveData removes the pods' volumes.
#>
[CmdletBinding()]
param(
    [string] $Target = 'C:\k',
    [string] $DataRoot = 'C:\var\lib\kubelet',
    [switch] $RemoveData
)
$ErrorActionPreference = 'Stop'
Set-StrictMode -Version 2

$kubelet = Join-Path $Target 'kubelet.exe'
$proxy = Join-Path $Target 'proxy.exe'
foreach ($program in $kubelet, $proxy) {
    if (Test-Path $program) {
        & $program service uninstall
        if ($LASTEXITCODE -ne 0) {
            throw "$program service uninstall ended with code $LASTEXITCODE"
        }
    }
}
if (Test-Path $proxy) {
    & $proxy '--cleanup'
    if ($LASTEXITCODE -ne 0) {
        throw "$proxy --cleanup ended with code $LASTEXITCODE"
    }
}
& netsh.exe advfirewall firewall delete rule 'name=winkube kubelet' | Out-Null
if (Get-Command Remove-MpPreference -ErrorAction SilentlyContinue) {
    Remove-MpPreference -ExclusionPath $DataRoot -ErrorAction SilentlyContinue
}
foreach ($name in 'kubelet.exe', 'kubelet.exe.old', 'kubelet.exe.new', 'kubelet.exe.back', 'proxy.exe', 'proxy.exe.old', 'proxy.exe.new', 'proxy.exe.back', 'kubelet.conf', 'proxy.conf', 'ca.crt') {
    Remove-Item (Join-Path $Target $name) -ErrorAction SilentlyContinue
}
if ($RemoveData -and (Test-Path $DataRoot)) {
    Remove-Item $DataRoot -Recurse -Force
    Write-Host "removed $DataRoot"
}
Write-Host 'Removed. Delete the Node with: kubectl delete node NODE'
