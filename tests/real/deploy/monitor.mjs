// Whether a ServiceMonitor, on standard input, is one to the operator's own schema.
import { readFileSync } from 'node:fs';
import { ServiceMonitor } from '@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor';

new ServiceMonitor(JSON.parse(readFileSync(0, 'utf8'))).validate();
